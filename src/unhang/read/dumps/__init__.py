"""Flight-recorder dumps of many ranks: found, decoded in parallel into columns, and joined."""
