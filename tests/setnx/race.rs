//! The known race of five clients, one step at a time.

use super::client::{Client, Replaced};
use super::{KEY, beside, had, is_ours, is_put_back, lock_status, queued, stamp};
use crate::support::Redis;

/// C1 has crashed. C4 and C5 have seen that its time has passed, and so have C2 and C3, which are runs of nxlock.
#[test]
fn five_clients_that_find_a_lock_expired_make_one_owner() {
    let redis = Redis::start();
    let [mut c1, mut c4, mut c5] = [-60_000, 0, 0].map(|ahead| Client::of(&redis, 30, ahead));
    assert!(c1.setnx());
    c1.crashes();
    for client in [&mut c4, &mut c5] {
        assert!(!client.setnx());
        let found = client.get().unwrap();
        assert!(client.has_passed(&found));
    }
    let mut c2 = had(&redis, &["-t", "30s"]);
    let mut c3 = queued(&redis, &["-t", "30s"]);
    c2.running.says("took over \"lock.foo\" from an old SETNX client: stale since ");
    assert!(is_ours(redis.value(KEY).as_deref()));
    // C4 and C5 continue where they were, and learn from the old value that they have lost.
    assert!(matches!(c4.getset(), Replaced::Lost(_)));
    assert!(matches!(c5.getset(), Replaced::Lost(_)));
    assert!(!c4.tries() && !c5.tries(), "the time in the key, whoever's it is, has not passed");
    assert!(!c3.is_up());
    is_put_back(&redis);
    c2.running.says("had written over \"lock.foo\" while it was held: put back");
    assert!(!c4.tries() && !c5.tries());
    assert_eq!(lock_status(&redis)["holder"]["pid"], c2.pid());
    assert!(!c3.is_up() && !c2.running.has_ended());
    // C2 hands the lock to C3, and no client gets between.
    c2.leaves();
    c3.up();
    assert!(!c4.tries() && !c5.tries());
    c3.leaves();
    assert!(c4.tries());
    assert!(!c5.tries());
    assert!(c4.releases());
}

#[test]
fn who_writes_a_new_time_first_owns_it_and_we_wait() {
    let redis = Redis::start();
    redis.put(KEY, stamp(&redis, -3600).as_bytes(), None);
    let [mut c4, mut c5] = [0, 0].map(|ahead| Client::of(&redis, 30, ahead));
    c4.get();
    c5.get();
    assert_eq!(c5.getset(), Replaced::Owns);
    redis.nxlock(beside("run", &["-n", "--", "echo", "ran"])).run().exits(75).prints("").says("valid until");
    assert!(matches!(c4.getset(), Replaced::Lost(_)));
    let mut ours = queued(&redis, &[]);
    assert!(!ours.is_up());
    assert!(c5.releases());
    ours.up();
    assert!(!c4.tries());
    ours.leaves();
}

/// However many callers inspect the lock at the same moment.
#[test]
fn an_abandoned_lock_is_taken_over_once_and_by_one() {
    let redis = Redis::start();
    redis.put(KEY, stamp(&redis, -7).as_bytes(), None);
    let calls: Vec<_> = (0..8).map(|_| redis.nxlock(beside("acquire", &["--ttl", "10m", "-n"])).start()).collect();
    let done: Vec<_> = calls.into_iter().map(crate::support::Running::finish).collect();
    let won: Vec<_> = done.iter().filter(|done| done.status.code() == Some(0)).collect();
    assert_eq!(won.len(), 1);
    assert!(done.iter().all(|done| matches!(done.status.code(), Some(0 | 75))));
    assert_eq!(done.iter().filter(|done| done.stderr.contains("took over")).count(), 1);
    assert_eq!(redis.value(KEY).as_deref(), Some(won[0].text().trim()));
    redis.nxlock(["release", "--key", KEY, won[0].text().trim()]).run().exits(0);
}
