"""python -m compress is the program."""

import subprocess
import sys

from . import find

if __name__ == "__main__":
    sys.exit(subprocess.call([find(), *sys.argv[1:]]))
