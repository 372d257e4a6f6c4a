"""Rate limits."""

from swarmd.bounds import KEYS_MAX, RateLimiter
from tests.dht.network import VirtualTime


def test_a_rate_limit_fills_up_again_and_forgets_the_silent() -> None:
    clock = VirtualTime()
    limit = RateLimiter(burst=3, per_s=1, now=clock)
    assert [limit.try_charge("a") for _ in range(4)] == [True, True, True, False]
    assert limit.try_charge("b")
    clock.now += 1.5
    assert [limit.try_charge("a") for _ in range(2)] == [True, False]
    for number in range(2 * KEYS_MAX):
        limit.try_charge(str(number))
    assert len(limit._buckets) == KEYS_MAX
    assert not limit.try_charge("c", 4)


def test_a_rate_limit_is_not_saved_up() -> None:
    clock = VirtualTime()
    limit = RateLimiter(burst=3, per_s=1, now=clock)
    assert limit.try_charge("a")
    clock.now += 1000
    assert [limit.try_charge("a") for _ in range(4)] == [True, True, True, False]
