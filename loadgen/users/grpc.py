"""placeholder"""


class GrpcConnection: ...


def grpc_requests(*a, **k): ...
