"""``python -m tidegate_auth_scram``."""

import sys

from tidegate_auth_scram._command import main

if __name__ == "__main__":
    sys.exit(main())
