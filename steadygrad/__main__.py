"""python -m steadygrad"""

import sys

from steadygrad.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
