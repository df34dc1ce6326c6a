"""Pictures of what a fleet did: one page for a browser, one image for a slide. Both take ``Lanes``, from a run or a simulator.

``write_html`` needs nothing; ``write_png`` needs matplotlib (extra ``report``) and raises ImportError without it.
"""

from .html_page import write_html
from .png_image import write_png

__all__ = ["write_html", "write_png"]
