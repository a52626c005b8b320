"""The course as a site: executes the lessons, builds their pages with the guides, and checks the pages."""
