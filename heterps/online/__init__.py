"""Controllers of runs that learn, lose devices and follow spot traces.

Front doors: `controller.OnlineController`, `elastic.ElasticController`. They decide; the
runtime carries out.
"""
