"""The muGraph generator (paper, section 4): closure search over tensors, then derivations, schedules and cuts."""

from mugraph.search.constraints import SearchSpace
from mugraph.search.driver import Proposal, SearchResult
from mugraph.search.long_programs import search
from mugraph.search.report import Progress, SearchReport
from mugraph.search.tasks import Options

__all__ = ["Options", "Progress", "Proposal", "SearchReport", "SearchResult", "SearchSpace", "search"]
