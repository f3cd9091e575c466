"""A checker of saved results that shares no code with what made them: it reads JSON, and needs NumPy and nothing else.

`check_folder` checks the hashes of a saved folder, proves again which axes of its graphs are parallel, computes its own
error bound, and compares both graphs in finite fields of its own choice (docs/verification.md). It is written to be
read: plain Python integers instead of vectors of machine words, blocks and iterations one after the other. An operator
means here what it says here, so this package has its own list of them on purpose.
"""

from mugraph.checker.checks import PARTS, CheckReport, Examination, Part, Status, check_folder, examine
from mugraph.checker.saved_files import Rejected, Undecided

__all__ = ["PARTS", "CheckReport", "Examination", "Part", "Rejected", "Status", "Undecided", "check_folder", "examine"]
