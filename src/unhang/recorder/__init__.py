"""What runs inside the training process: it writes down what no one can see from outside, and nothing else.

Standard library only (torch is touched when the program itself has imported it), Python 3.9 or newer, no import of any
other part of unhang: the bootstrap loads this folder under the name `_unhang_recorder` in environments where unhang is
not installed. Start: `install.install()`. Files: docs/design/0001-run-directory.md.
"""
