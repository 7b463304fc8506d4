"""Makes ``journaled_kit`` importable for the tests beside it, and what they share with the SQL store's."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "store_jdbc"))
sys.path.insert(0, str(Path(__file__).parent))
