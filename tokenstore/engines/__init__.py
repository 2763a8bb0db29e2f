"""From an inference engine's answer to an entry: one file per engine, the same names in each, no I/O.

| name | does |
|---|---|
| `request_options(...)` | what to ask the engine for, to be merged into the body of the request |
| `entry_from_response(response, *, rollout_id, model_call_id, ...)` | a whole answer to a `TokenEntry` |
| `StreamAssembler(*, rollout_id, model_call_id, ...)` | a streamed answer: `feed(chunk)` each, then `entry()` |
| `refusal_from_response(response, *, model_call_id, status=None)` | a refusal before generation, or None: a lost call |

| engine | file |
|---|---|
| vLLM, and OpenAI-compatible servers that give token ids, TensorRT-LLM's completions too | `vllm` |
| SGLang; the `/generate` of lmdeploy has the same form | `sglang` |
| Responses of NeMo Gym's model servers | `responses` |
| llama.cpp's `/completion` | `llama_cpp` |

OpenAI's own service gives no token ids, so its answers are refused with `MissingTokensError`: nothing is tokenised.

The rules, the same for all:

1. Ids and log probabilities are taken from one choice of one answer. Whatever carries them twice must say the same.
2. Each generated id has its own log probability. Lengths agree with each other and with `usage`, where it is given.
3. Nothing is padded, dropped, filtered, converted or tokenised again. An id is an int in 0 .. 2**32 - 1; a log
   probability is a finite number that is not far above 0. Null, NaN, infinite, missing, `"7"`, `7.0`, `True`: refused.
4. One answer is one call: more than one choice is refused, since each would be a sample of its own.
5. An answer without its end is refused, and so is an aborted one, unless `accept_aborted=True` asks for what it holds.
6. What is refused raises a typed `EngineAnswerError` with the place and the numbers, never text or tokens.

Kept in `TokenEntry.extra`, where the engine or the caller says it: `finish_reason`, `weight_version` (one version made
all ids), `weight_versions` (spans over the ids), `logprobs_mode` (`"raw"` or `"processed"`), `sampling`,
`clamped_log_probs` (how many are the engine's stand-in for minus infinity), and everything that the caller passes as
`extra`. Routed experts are kept as they are given, mostly base64.

An answer may be parsed JSON, JSON text, or an object with `model_dump`, such as the openai client gives; arrays inside
may be numpy's or torch's. Read in this order: `call`, `values`, `answer`, `choices`, `streams`, `deltas`, `failures`,
then the engines.
"""
