"""Flight-recorder dumps of many ranks: found, decoded in parallel into columns, and joined.

Where to begin: `locate.locate(paths)` finds the dumps, `reader.DumpReader(files)` reads them as far as the question
needs, and a `shard.Shard` holds what they gave. What a field of an entry means is said in `entries`, and of what stands
before the entries in `head`; nowhere else. docs/design/0003-dumps.md tells the reasons.
"""
