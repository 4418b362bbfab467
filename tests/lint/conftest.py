"""The programs of public fixes are read by `unhang lint` and never run: what one of them calls a test is none of ours."""

collect_ignore_glob = ["fixes/*"]
