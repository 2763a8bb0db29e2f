"use strict";
// The page of one rollout. Rows are laid out once for a width and kept as plain arrays; only those in sight are elements.
// Every text from the data becomes a text node and nothing else.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const HEIGHT = 22;      // of a row, as in the style
const EDGES = [-0.1, -0.5, -1, -2, -4, -7];  // log probabilities where the next colour begins
const calls = data.calls;
const count = (number) => number.toLocaleString("en-US");

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// ---------------------------------------------------------------------------------------------- the tree of calls

calls.forEach((call, at) => {
  call.at = at;
  call.folded = false;
  call.shut = false;
  call.children = [];
  call.length = call.shared + call.prompt.length;
  call.up = call.extends !== null ? call.extends : call.break ? call.base : null;
});
const roots = [];
calls.forEach((call) => (call.up === null ? roots : calls[call.up].children).push(call));
const order = [];
(function walk() {
  const stack = roots.slice().reverse().map((call) => [call, 0]);
  while (stack.length) {
    const [call, depth] = stack.pop();
    // A chain of turns stays in one column; only where it forks do its branches step to the right.
    call.depth = depth;
    order.push(call);
    const step = call.children.length > 1 ? 1 : 0;
    for (let i = call.children.length - 1; i >= 0; i--) stack.push([call.children[i], depth + step]);
  }
})();

function treeRow(call) {
  const row = element("button", "call");
  row.type = "button";
  row.style.paddingLeft = 8 + 12 * Math.min(call.depth, 12) + "px";
  const fold = element("span", "fold", call.children.length > 1 ? (call.shut ? "▸" : "▾") : "·");
  row.append(fold, element("span", "name", call.id));
  const facts = [count(call.length) + "+" + count(call.generation.length)];
  if (call.break) facts.push("break");
  if (call.fate !== "trained") facts.push(call.fate || "unknown");
  row.append(element("span", call.break || call.fate !== "trained" ? "facts bad" : "facts", facts.join(" ")));
  row.title = call.id;
  row.dataset.call = call.at;
  row.addEventListener("click", (event) => {
    if (event.target === fold && call.children.length > 1) {
      call.shut = !call.shut;
      showTree();
      layOut();
    } else goTo(call);
  });
  return row;
}

let visible = order;
function showTree() {
  const hidden = new Set();
  visible = [];
  for (const call of order) {
    const up = call.up === null ? null : calls[call.up];
    if (up && (hidden.has(up) || up.shut)) { hidden.add(call); continue; }
    visible.push(call);
  }
  $("tree").replaceChildren(...visible.map(treeRow));
}

// ---------------------------------------------------------------------------------------------- laying out rows

// A row is {kind, call, text} or {kind: "tokens", call, part, from, to}; `part` is "prompt" or "generation".
let rows = [];
let firstRow = new Map();
const measure = document.createElement("canvas").getContext("2d");
const widths = new Map();

// What masks the rollout as a whole, whatever its trajectories say.
const all = data.verdict.trainable ? "" : `all is masked: ${data.verdict.reasons.join(", ")}`;

function piece(id) {
  const text = data.pieces[id];
  if (text === undefined) return String(id);
  return text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍");
}

function widthOf(id) {
  let width = widths.get(id);
  if (width === undefined) {
    width = measure.measureText(piece(id)).width + 6.5;
    widths.set(id, width);
  }
  return width;
}

function tokenRows(call, part, room) {
  const ids = call[part];
  let from = 0, used = 0;
  for (let at = 0; at < ids.length; at++) {
    const width = widthOf(ids[at]);
    if (used + width > room && at > from) {
      rows.push({kind: "tokens", call, part, from, to: at});
      from = at;
      used = 0;
    }
    used += width;
  }
  if (from < ids.length) rows.push({kind: "tokens", call, part, from, to: ids.length});
}

function textRows(call, text, columns) {
  for (const line of text.split("\n")) {
    const letters = line.length > columns ? Array.from(line) : line;
    if (letters.length <= columns) rows.push({kind: "text", call, text: line});
    else for (let at = 0; at < letters.length; at += columns)
      rows.push({kind: "text", call, text: letters.slice(at, at + columns).join("")});
  }
}

function layOut() {
  const room = $("view").clientWidth - 24;
  measure.font = "13px ui-monospace, 'DejaVu Sans Mono', monospace";
  const columns = Math.max(10, Math.floor((room - 4) / (measure.measureText("0".repeat(50)).width / 50)));
  rows = [];
  firstRow = new Map();
  for (const call of visible) {
    firstRow.set(call, rows.length);
    rows.push({kind: "head", call});
    if (!call.folded) callRows(call, room, columns);
  }
  $("space").style.height = rows.length * HEIGHT + "px";
  show(true);
}

function callRows(call, room, columns) {
  if (call.shared) {
    const from = calls[call.base].id;
    rows.push({kind: "note", call, text: `… ${count(call.shared)} prompt tokens as in ${from}`});
  }
  if (call.break) {
    const text = `break: leaves the ${call.break.inside} of ${call.break.against} at position ${count(call.break.at)}`;
    rows.push({kind: "broken", call, text});
  }
  if (call.prompt.length) {
    rows.push({kind: "note", call, text: `${count(call.prompt.length)} new prompt tokens`});
    tokenRows(call, "prompt", room);
  }
  const own = call.fate === "trained" ? "loss mask 1" : `loss mask 0: ${call.fate || "no trajectory"}`;
  const why = all ? `${own}; ${all}` : own;
  rows.push({kind: "note", call, text: `${count(call.generation.length)} generated tokens, ${why}`});
  tokenRows(call, "generation", room);
  for (const item of call.items) {
    rows.push({kind: "note", call, text: item.kind});
    textRows(call, item.text, columns);
  }
}

// ---------------------------------------------------------------------------------------------- showing what is in sight

let shownFrom = -1, shownTo = -1;
let needle = "", hits = [], hitAt = -1;

function colour(logProb) {
  let step = 0;
  while (step < EDGES.length && logProb < EDGES[step]) step++;
  return "p" + step;
}

function tokenElement(row, at) {
  const id = row.call[row.part][at];
  const made = element("span", "t", piece(id));
  if (row.part === "generation") {
    made.classList.add("g", colour(row.call.log_probs[at]), row.call.fate === "trained" ? "m" : "u");
  }
  if (needle && String(id) === needle) made.classList.add("hit");
  made.dataset.at = at;
  return made;
}

function rowElement(at) {
  const row = rows[at];
  const made = element("div", "row " + row.kind);
  made.dataset.row = at;
  if (row.kind === "head") {
    const facts = [` ${count(row.call.length)} prompt + ${count(row.call.generation.length)} generated`];
    facts.push(...row.call.notes);
    if (row.call.extends !== null) facts.push("extends " + calls[row.call.extends].id);
    made.append(row.call.folded ? "▸ " : "▾ ", element("span", "id", row.call.id), element("span", "more", facts.join(", ")));
  } else if (row.kind === "tokens") {
    for (let token = row.from; token < row.to; token++) made.append(tokenElement(row, token));
  } else made.append(row.text);
  if (needle && matches(row)) made.classList.add("hit");
  return made;
}

function show(anew) {
  const view = $("view");
  const from = Math.max(0, Math.floor(view.scrollTop / HEIGHT) - 10);
  const to = Math.min(rows.length, Math.ceil((view.scrollTop + view.clientHeight) / HEIGHT) + 10);
  if (!anew && from === shownFrom && to === shownTo) return;
  shownFrom = from;
  shownTo = to;
  const kept = new Map();  // while scrolling most rows stay
  if (!anew) for (const row of $("rows").children) kept.set(Number(row.dataset.row), row);
  const made = [];
  for (let at = from; at < to; at++) made.push(kept.get(at) || rowElement(at));
  $("rows").style.top = from * HEIGHT + "px";
  $("rows").replaceChildren(...made);
  const top = rows[Math.min(rows.length - 1, Math.floor(view.scrollTop / HEIGHT))];
  for (const row of $("tree").children) row.classList.toggle("here", !!top && Number(row.dataset.call) === top.call.at);
}

let due = false;
$("view").addEventListener("scroll", () => {
  hideTip();
  if (!due) {
    due = true;
    requestAnimationFrame(() => { due = false; show(false); });
  }
});
let roomThen = 0;
new ResizeObserver(() => {
  if ($("view").clientWidth !== roomThen) {
    roomThen = $("view").clientWidth;
    layOut();
  } else show(true);
}).observe($("view"));

function goTo(call) {
  $("view").scrollTop = firstRow.get(call) * HEIGHT;
  show(true);
}

// ---------------------------------------------------------------------------------------------- fold

$("rows").addEventListener("click", (event) => {
  const head = event.target.closest(".head");
  if (!head) return;
  const call = rows[head.dataset.row].call;
  call.folded = !call.folded;
  layOut();
});
function foldAll(folded) {
  for (const call of calls) call.folded = folded;
  layOut();
  $("view").scrollTop = 0;
}
$("fold").addEventListener("click", () => foldAll(true));
$("unfold").addEventListener("click", () => foldAll(false));

// ---------------------------------------------------------------------------------------------- hover

function tipText(row, at) {
  const call = row.call;
  const id = call[row.part][at];
  const position = (row.part === "prompt" ? call.shared : call.length) + at;
  const lines = [`id ${id}`];
  if (data.pieces[id] !== undefined) lines.push(`text ${JSON.stringify(data.pieces[id])}`);
  if (row.part === "generation") {
    const logProb = call.log_probs[at];
    lines.push(`log probability ${logProb}`, `probability ${(100 * Math.exp(logProb)).toPrecision(4)} %`);
  }
  lines.push(`position ${count(position)} of call ${call.id}`);
  if (row.part === "prompt") lines.push("prompt, loss mask 0");
  else lines.push(call.fate === "trained" ? "generated, loss mask 1" : `generated, loss mask 0: ${call.fate || "unknown"}`);
  if (all) lines.push(all);
  return lines.join("\n");
}

function showTip(event) {
  const token = event.target.closest(".t");
  if (!token || !token.dataset.at) return hideTip();
  const tip = $("tip");
  tip.textContent = tipText(rows[token.parentElement.dataset.row], Number(token.dataset.at));
  tip.hidden = false;
  const box = token.getBoundingClientRect(), own = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(box.left, innerWidth - own.width - 4)) + "px";
  const below = box.bottom + 4;
  tip.style.top = (below + own.height < innerHeight ? below : Math.max(4, box.top - own.height - 4)) + "px";
}
function hideTip() { $("tip").hidden = true; }
$("rows").addEventListener("pointerover", showTip);
$("rows").addEventListener("click", showTip);
$("rows").addEventListener("pointerleave", hideTip);

// ---------------------------------------------------------------------------------------------- search

function matches(row) {
  if (row.kind === "head") return row.call.id.toLowerCase().includes(needle);
  return row.kind === "text" && row.text.toLowerCase().includes(needle);
}
function contains(row) {
  if (row.kind !== "tokens") return matches(row);
  const ids = row.call[row.part], number = Number(needle);
  for (let at = row.from; at < row.to; at++) if (ids[at] === number) return true;
  return false;
}
// What is folded away is opened where it holds what is looked for.
function openWhatHolds(number) {
  let opened = false;
  for (const call of calls) {
    const found = call.items.some((item) => item.text.toLowerCase().includes(needle)) ||
      (number && (call.prompt.includes(Number(needle)) || call.generation.includes(Number(needle))));
    if (call.folded && found) { call.folded = false; opened = true; }
    if (call.shut) { call.shut = false; opened = true; }
  }
  if (opened) { showTree(); layOut(); }
}
function search() {
  needle = $("search").value.trim().toLowerCase();
  const number = /^\d+$/.test(needle);
  hits = [];
  if (needle) openWhatHolds(number);
  if (needle) rows.forEach((row, at) => { if (number ? contains(row) : matches(row)) hits.push(at); });
  hitAt = -1;
  if (hits.length) nextHit();
  else { $("found").textContent = needle ? "nothing" : ""; show(true); }
}
function nextHit() {
  if (!hits.length) return;
  hitAt = (hitAt + 1) % hits.length;
  $("found").textContent = `${count(hitAt + 1)} of ${count(hits.length)}`;
  $("view").scrollTop = Math.max(0, (hits[hitAt] - 2) * HEIGHT);
  show(true);
}
let typing = 0;
$("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 120); });
$("search").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  clearTimeout(typing);
  if ($("search").value.trim().toLowerCase() === needle && hits.length) nextHit();
  else search();
});
$("next").addEventListener("click", nextHit);

// ---------------------------------------------------------------------------------------------- the head of the page

function facts() {
  const generated = calls.reduce((sum, call) => sum + call.generation.length, 0);
  const fresh = calls.reduce((sum, call) => sum + call.prompt.length, 0);
  let logs = 0;
  for (const call of calls) for (const logProb of call.log_probs) logs += logProb;
  const models = [...new Set(calls.map((call) => call.model).filter(Boolean))];
  const said = [data.state, `version ${data.version}`, `${count(calls.length)} calls`,
    `${count(fresh)} prompt tokens once`, `${count(generated)} generated`, `${data.verdict.chains} trajectories`];
  for (const [fate, tokens] of Object.entries(data.verdict.tokens)) said.push(`${count(tokens)} ${fate}`);
  if (generated) said.push(`mean log probability ${(logs / generated).toFixed(4)}`);
  if (models.length) said.push(models.join(", "));
  return said.join(" · ");
}

function head() {
  $("title").textContent = data.rollout;
  $("totals").textContent = facts();
  const good = data.verdict.trainable;
  $("verdict").append(element("span", good ? "good" : "bad", good ? "to be trained on" : "not to be trained on"),
    good ? "" : ": " + data.verdict.reasons.join(", "));
  const reasons = [...data.reasons.map((reason) => "incomplete: " + reason),
    ...data.open_calls.map((call) => "in flight: " + call),
    ...data.refusals.map((refusal) => `refused: ${refusal.model_call_id} (${refusal.code || "no code"})`)];
  $("why").hidden = !reasons.length;
  $("why").open = reasons.length <= 4;
  $("why-title").textContent = `reasons, calls in flight and refusals: ${count(reasons.length)}`;
  $("reasons").replaceChildren(...reasons.map((reason) => element("li", "", reason)));
  const names = ["≥ " + EDGES[0], ...EDGES.slice(1).map((edge) => "≥ " + edge), "< " + EDGES[EDGES.length - 1]];
  $("legend").append("log p", ...names.map((name, step) => element("span", `t g p${step}`, name)),
    element("span", "t g p0 m", "trained"), element("span", "t g p0 u", "masked"));
}

head();
showTree();
layOut();
