"""The labelling page: web server, tokens of annotators."""
