"""The course as a site: executes the lessons, builds their pages with the guides, and checks the pages.

``make course`` calls ``python -m course build``. Nothing of ``labkit`` needs this package.
"""
