"""The store inside other frameworks, one file each. No framework is a dependency, and none is imported until used."""
