"""The peers of `tests.fix_net` for every test of this folder."""

from tests.fix_net import fault_proxy, scripted_server, tls_material

__all__ = ["fault_proxy", "scripted_server", "tls_material"]
