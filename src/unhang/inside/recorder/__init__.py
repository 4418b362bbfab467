"""What runs inside the training process: it writes down what no one can see from outside, and nothing else.

Standard library only (torch is touched when the program itself has imported it), Python 3.9 or newer, and of unhang only the
files beside this folder: the bootstrap loads it as `_unhang_inside.recorder` in environments where unhang is not installed.
Start: `install.install()`. Files: docs/design/0001-run-directory.md.
"""
