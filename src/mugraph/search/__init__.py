"""The muGraph generator (paper, section 4): closure search over tensors, then derivations, schedules and cuts."""

from mugraph.search.constraints import SearchSpace
from mugraph.search.engine import Candidate, SearchResult
from mugraph.search.items import Options
from mugraph.search.long import search
from mugraph.search.report import Progress, SearchReport

__all__ = ["Candidate", "Options", "Progress", "SearchReport", "SearchResult", "SearchSpace", "search"]
