//! `status --watch`: a screen with keys, or a text for each change.

mod piped;
mod screen;

use crate::support::Redis;

#[test]
fn how_often_is_a_length_of_time_and_not_less_than_a_tenth_of_a_second() {
    let redis = Redis::start();
    redis.nxlock(["status", "--watch=5"]).run().exits(64).says("--watch").says("5s");
    redis.nxlock(["status", "--watch=1ms"]).run().exits(64).says("--watch").says("100ms");
}
