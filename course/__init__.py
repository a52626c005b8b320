"""The course: what the lessons call (``course.lessons``), and their site (``course.site``)."""
