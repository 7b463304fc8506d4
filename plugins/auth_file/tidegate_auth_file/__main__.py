"""``python -m tidegate_auth_file``."""

import sys

from tidegate_auth_file._command import main

if __name__ == "__main__":
    sys.exit(main())
