"""What runs inside Locust: the users and the engine that sends for them.

With loadgen/locustfile.py the only code that imports locust or gevent. Of these modules only triton_users, conductor,
statistics and member import locust, which patches the process that does; the engine and the protocols do without.
"""
