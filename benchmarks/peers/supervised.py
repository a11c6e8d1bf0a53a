"""The app of the adapter for `tenure worker`, each process of which imports it; the order is in the environment."""

import os

from benchmarks.peers.order import Order
from benchmarks.peers.ours import ORDER, app_of
from benchmarks.peers.tally import Tally

_order = Order.of_json(os.environ[ORDER])
app, _ = app_of(_order, Tally(_order.tally))
