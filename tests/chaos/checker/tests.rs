//! Records written by hand: the checker finds each kind of violation, and each excuse covers what it should and nothing
//! else.

use super::{MS, check};
use crate::record::{
    Ailment, Attempt, Client, Fault, Left, Look, Mode, Nanos, On, Record, Sight, Slot, Stamp, Starved, Terms, Who,
    Whose, Word,
};
use crate::trace::{Granted, Token, Trace};

/// A lock `job`, an hour after the machine's boot; all times are ms since then.
const BEGAN: Nanos = 3_600_000 * MS;

fn at(ms: u64) -> Nanos {
    BEGAN + ms * MS
}

struct Scene(Record);

impl Scene {
    fn new() -> Scene {
        Scene(Record {
            arena: "by hand",
            names: vec!["job".into()],
            began: BEGAN,
            ended: at(60_000),
            attempts: Vec::new(),
            stamps: Vec::new(),
            faults: Vec::new(),
            traces: Vec::new(),
            voted: false,
            sights: Vec::new(),
            unwatched: Vec::new(),
            left: Vec::new(),
            torn: 0,
        })
    }

    /// Adds an attempt with a ttl of 3 s, and returns it.
    fn asks(&mut self, asked: u64, ended: u64) -> Who {
        self.0.attempts.push(Attempt {
            name: 0,
            client: Client::Run,
            mode: Mode::Exclusive,
            also: Vec::new(),
            ttl: 3_000 * MS,
            queued: true,
            first: false,
            near: true,
            dawdles: 0,
            outlasted: false,
            may_be_refused: true,
            supersedes_holders: false,
            is_limited: false,
            asked: at(asked),
            ended: Some((at(ended), "75".into())),
            starved: Starved::default(),
        });
        self.0.attempts.len() - 1
    }

    /// Adds an attempt that is inside from `from` to `to`, with a stamp every 10 ms.
    fn inside(&mut self, asked: u64, from: u64, to: u64, fence: u64) -> Who {
        let who = self.asks(asked, to + 5);
        self.0.attempts[who].ended = Some((at(to + 5), "0".into()));
        self.0.stamps.push(Stamp {
            at: at(from),
            who,
            word: Word::Enter(Terms { fence: Some(fence), ..Terms::default() }),
        });
        for beat in (from + 10..to).step_by(10) {
            self.0.stamps.push(Stamp { at: at(beat), who, word: Word::Beat });
        }
        self.0.stamps.push(Stamp { at: at(to), who, word: Word::Leave });
        who
    }

    /// Adds a reader that is inside from `from` to `to`.
    fn reads(&mut self, asked: u64, from: u64, to: u64, fence: u64) -> Who {
        let who = self.inside(asked, from, to, fence);
        self.0.attempts[who].mode = Mode::Shared;
        who
    }

    /// Adds the holder of a slot, `(number, of)`.
    fn slotted(&mut self, (number, of): (u64, u64), asked: u64, from: u64, to: u64, fence: u64) -> Who {
        let who = self.inside(asked, from, to, fence);
        self.0.attempts[who].mode = Mode::Slots(of);
        self.told(who, Some(Slot { number, of }));
        who
    }

    fn told(&mut self, who: Who, told: Option<Slot>) {
        for stamp in self.0.stamps.iter_mut().filter(|stamp| stamp.who == who) {
            if let Word::Enter(terms) = &mut stamp.word {
                terms.slot = told;
            }
        }
    }

    /// Gives an attempt a second lock's fence.
    fn has_further(&mut self, who: Who, fence: u64) {
        for stamp in self.0.stamps.iter_mut().filter(|stamp| stamp.who == who) {
            if let Word::Enter(terms) = &mut stamp.word {
                terms.also[0] = Some(fence);
            }
        }
    }

    fn befalls(&mut self, ailment: Ailment, on: On, from: u64, to: u64) {
        self.0.faults.push(Fault { ailment, on, from: at(from), to: at(to) });
    }

    fn seen(&mut self, whose: Whose, line: &[Who], from: u64, to: u64) {
        let look = |ms| Look { before: at(ms), after: at(ms) + MS };
        self.0.sights.push(Sight { name: 0, whose, line: line.to_vec(), first: look(from), last: look(to) });
    }

    #[track_caller]
    fn shows(mut self, violations: &[&str]) {
        self.0.stamps.sort_by_key(|stamp| stamp.at);
        let found: Vec<String> = check(&self.0).into_iter().map(|violation| violation.what).collect();
        let as_expected = found.len() == violations.len() && found.iter().zip(violations).all(|(f, v)| f.contains(v));
        assert!(as_expected, "found {found:#?}, and not {violations:#?}");
    }
}

/// Returns two sections, the second entered 100 ms before the first leaves, at 5000 ms.
fn overlapping() -> (Scene, Who) {
    let mut scene = Scene::new();
    let old = scene.inside(0, 100, 5_000, 1);
    scene.inside(0, 4_900, 5_300, 2);
    (scene, old)
}

const FOUND: &[&str] = &["overlap by 100.000 ms"];

#[test]
fn one_after_the_other_is_as_it_should_be() {
    let mut scene = Scene::new();
    scene.inside(0, 100, 200, 1);
    scene.inside(0, 201, 300, 2);
    scene.shows(&[]);
}

#[test]
fn two_at_once_are_found() {
    overlapping().0.shows(FOUND);
}

#[test]
fn whoever_was_kept_from_a_processor_may_be_as_late() {
    // Long before the end of the lease it made nobody late.
    let readings = [
        (100, vec![(5_300, 101)], &[][..]),
        (100, vec![(5_300, 99)], FOUND),
        (40, vec![(5_300, 49)], &["overlap"]),
        (40, vec![(5_300, 50)], &[]),
        (100, vec![(4_550, 70), (5_300, 169)], FOUND),
        (100, vec![(4_550, 70), (5_300, 171)], &[]),
        (100, vec![(4_750, 70), (5_300, 120)], &[]),
    ];
    for (overlap, readings, found) in readings {
        let mut scene = Scene::new();
        let old = scene.inside(0, 100, 5_000, 1);
        scene.inside(0, 5_000 - overlap, 5_300, 2);
        for (moment, ms) in readings {
            scene.0.attempts[old].starved.reads(at(moment), ms * MS);
        }
        scene.shows(found);
    }
    for ms in [99, 101] {
        let (mut scene, old) = overlapping();
        scene.0.attempts[1 - old].starved.reads(at(1_000), ms * MS);
        scene.shows(FOUND);
    }
}

#[test]
fn one_within_a_long_one_is_found_though_others_came_between() {
    let mut scene = Scene::new();
    scene.inside(0, 100, 900, 1);
    scene.inside(0, 200, 300, 2);
    scene.inside(0, 400, 500, 3);
    scene.shows(&["overlap", "overlap"]);
}

#[test]
fn other_names_are_other_locks() {
    let (mut scene, old) = overlapping();
    scene.0.names.push("other".into());
    scene.0.attempts[old].name = 1;
    scene.shows(&[]);
}

/// Returns `overlapping`, but the first attempt has that lock as its second one, beside one that nobody else wants.
fn overlapping_in_the_second_lock() -> (Scene, Who) {
    let (mut scene, old) = overlapping();
    scene.0.names.push("other".into());
    (scene.0.attempts[old].name, scene.0.attempts[old].also) = (1, vec![(0, Mode::Exclusive)]);
    scene.has_further(old, 1);
    (scene, old)
}

#[test]
fn each_lock_of_an_attempt_with_several_is_judged() {
    overlapping_in_the_second_lock().0.shows(FOUND);
    for (name, found) in [(0, &[][..]), (1, FOUND)] {
        let (mut scene, _) = overlapping_in_the_second_lock();
        scene.befalls(Ailment::Deleted, On::Name(name), 3_600, 3_600);
        scene.shows(found);
    }
    let (mut scene, old) = overlapping_in_the_second_lock();
    scene.0.attempts[old].also = vec![(0, Mode::Shared)];
    scene.0.attempts[1 - old].mode = Mode::Shared;
    scene.has_further(old, 2);
    scene.shows(&[]);
}

#[test]
fn a_fence_of_a_second_lock_that_is_too_low_is_found() {
    for (fence, found) in [(2, &[][..]), (1, &["c1 entered job with fence 1, after c0 with 1"])] {
        let mut scene = Scene::new();
        scene.0.names.push("other".into());
        scene.inside(0, 100, 200, 1);
        let second = scene.inside(0, 201, 300, 9);
        (scene.0.attempts[second].name, scene.0.attempts[second].also) = (1, vec![(0, Mode::Exclusive)]);
        scene.has_further(second, fence);
        scene.shows(found);
    }
}

#[test]
fn one_that_goes_on_after_the_loss_of_its_second_lock_is_found() {
    let mut scene = Scene::new();
    scene.0.names.push("other".into());
    let who = scene.inside(0, 100, 500, 9);
    (scene.0.attempts[who].name, scene.0.attempts[who].also) = (1, vec![(0, Mode::Exclusive)]);
    scene.has_further(who, 1);
    scene.seen(Whose::Of(who), &[], 90, 200);
    scene.seen(Whose::Nobodys, &[], 210, 600);
    scene.shows(&["c0 went on in job for"]);
}

/// It waits for `job` first, and then for `other`.
#[test]
fn only_the_first_lock_of_several_is_waited_for_from_the_beginning() {
    for (free, found) in [("job", &["job was free for 3"][..]), ("other", &[])] {
        let mut scene = Scene::new();
        scene.0.names = if free == "job" { ["job", "other"] } else { ["other", "job"] }.map(str::to_owned).into();
        let who = scene.asks(0, 4_000);
        (scene.0.attempts[who].name, scene.0.attempts[who].also) = (1, vec![(0, Mode::Exclusive)]);
        scene.seen(Whose::Nobodys, &[], 10, 4_100);
        scene.shows(found);
    }
}

#[test]
fn whoever_had_a_lock_that_was_forgotten_has_a_third_of_its_ttl_to_notice() {
    // And half a second of lateness.
    for (forgotten, found) in [(3_600, &[][..]), (3_400, FOUND)] {
        for ailment in [Ailment::Flushed, Ailment::Emptied, Ailment::SetForward] {
            let (mut scene, _) = overlapping();
            scene.befalls(ailment, On::All, forgotten - 50, forgotten);
            scene.shows(found);
        }
        for ailment in [Ailment::Deleted, Ailment::Overwritten] {
            let (mut scene, _) = overlapping();
            scene.befalls(ailment, On::Name(0), forgotten - 50, forgotten);
            scene.shows(found);
        }
    }
}

#[test]
fn a_master_that_is_being_deposed_may_grant_what_the_next_one_has_granted_before() {
    for (deposed, found) in [(4_800, &[][..]), (4_799, &["overlap by 50.000 ms"])] {
        let mut scene = Scene::new();
        scene.inside(0, 100, 20_000, 1);
        scene.inside(4_800, 4_900, 4_950, 2);
        scene.befalls(Ailment::Deposed, On::All, 4_000, deposed);
        scene.shows(found);
    }
}

#[test]
fn one_that_will_not_stop_is_killed_after_its_grace() {
    let (mut scene, old) = overlapping();
    scene.0.attempts[old].dawdles = 300 * MS;
    scene.befalls(Ailment::Flushed, On::All, 3_300, 3_300);
    scene.shows(&[]);
}

#[test]
fn one_that_cannot_find_out_has_its_whole_ttl_and_no_more() {
    for (forgotten, found) in [(2_010, &[][..]), (1_990, FOUND)] {
        let (mut scene, old) = overlapping();
        scene.0.attempts[old].near = false;
        scene.befalls(Ailment::Flushed, On::All, forgotten, forgotten);
        scene.shows(found);
        let (mut scene, _) = overlapping();
        scene.befalls(Ailment::Flushed, On::All, forgotten, forgotten);
        scene.befalls(Ailment::Hung, On::All, forgotten + 100, 4_000);
        scene.shows(found);
    }
}

#[test]
fn forgetting_excuses_nobody_who_asked_later() {
    let mut scene = Scene::new();
    scene.befalls(Ailment::Flushed, On::All, 50, 60);
    scene.inside(100, 200, 400, 1);
    scene.inside(100, 300, 500, 2);
    scene.shows(&["overlap"]);
}

#[test]
fn forgetting_excuses_nobody_who_was_granted_it_again() {
    let (mut scene, old) = overlapping();
    scene.befalls(Ailment::Flushed, On::All, 4_000, 4_010);
    scene.seen(Whose::Of(old), &[], 4_100, 4_890);
    scene.shows(FOUND);
}

#[test]
fn one_that_had_it_before_an_outsider_may_come_to_enter_only_after() {
    for (asked, found) in [(0, &[][..]), (150, &["overlap by 50.000 ms"])] {
        let mut scene = Scene::new();
        scene.befalls(Ailment::Flushed, On::All, 100, 110);
        scene.inside(120, 200, 300, 0);
        scene.0.stamps[0].word = Word::Enter(Terms::default());
        scene.inside(asked, 250, 400, 1);
        scene.shows(found);
    }
}

#[test]
fn a_clock_set_forward_takes_a_lease_before_its_time_though_not_at_once() {
    let mut scene = Scene::new();
    let who = scene.inside(0, 100, 2_000, 1);
    scene.0.attempts[who].near = false;
    scene.befalls(Ailment::SetForward, On::All, 500, 500);
    scene.seen(Whose::Of(who), &[], 90, 1_500);
    scene.seen(Whose::Nobodys, &[], 1_510, 2_500);
    scene.shows(&[]);
}

#[test]
fn forgetting_another_name_excuses_nothing() {
    let (mut scene, _) = overlapping();
    scene.0.names.push("other".into());
    scene.befalls(Ailment::Deleted, On::Name(1), 4_000, 4_000);
    scene.shows(FOUND);
}

#[test]
fn nxlock_frozen_alone_is_excused_until_it_has_woken() {
    for (thawed, found) in [(4_950, &[][..]), (4_850, FOUND)] {
        let (mut scene, old) = overlapping();
        scene.befalls(Ailment::FrozenAlone, On::Attempt(old), 1_000, thawed);
        scene.shows(found);
    }
}

#[test]
fn another_ones_freeze_excuses_nothing() {
    let (mut scene, _) = overlapping();
    scene.befalls(Ailment::FrozenAlone, On::Attempt(1), 1_000, 5_000);
    scene.shows(FOUND);
}

#[test]
fn nothing_else_that_befalls_anybody_is_an_excuse() {
    use Ailment::{
        Cancelled, CommandKilled, Down, FrozenWithCommand, GroupKilled, GuardKilled, Hung, Killed, Loading,
        OutOfMemory, ReadOnly, ScriptsForgotten, SetBack, Suspended, TypedInterrupt, TypedStop,
    };
    let on_process = [
        Killed,
        GuardKilled,
        GroupKilled,
        CommandKilled,
        TypedInterrupt,
        TypedStop,
        FrozenWithCommand,
        Suspended,
        Cancelled,
    ];
    for ailment in on_process {
        let (mut scene, old) = overlapping();
        scene.befalls(ailment, On::Attempt(old), 1_000, 5_000);
        scene.shows(FOUND);
    }
    for ailment in [Hung, Down, Loading, ReadOnly, OutOfMemory, ScriptsForgotten, SetBack] {
        let (mut scene, _) = overlapping();
        scene.befalls(ailment, On::All, 1_000, 5_000);
        scene.shows(FOUND);
    }
}

#[test]
fn fences_that_fall_or_stand_still_are_found() {
    for second in [6, 7] {
        let mut scene = Scene::new();
        scene.inside(0, 100, 200, 7);
        scene.inside(0, 300, 400, second);
        scene.shows(&["with fence"]);
    }
}

#[test]
fn one_that_goes_on_after_its_lock_was_seen_to_be_gone_is_found() {
    let mut scene = Scene::new();
    let who = scene.inside(0, 100, 500, 1);
    scene.seen(Whose::Of(who), &[], 90, 300);
    scene.seen(Whose::Nobodys, &[], 310, 900);
    scene.shows(&["went on in job for 189.000 ms"]);
}

#[test]
fn one_that_goes_on_after_its_lock_was_seen_to_be_deleted_is_excused_for_as_long() {
    let mut scene = Scene::new();
    let who = scene.inside(0, 100, 500, 1);
    scene.befalls(Ailment::Deleted, On::Name(0), 305, 305);
    scene.seen(Whose::Of(who), &[], 90, 300);
    scene.seen(Whose::Nobodys, &[], 310, 900);
    scene.shows(&[]);
}

#[test]
fn a_reservation_that_lapsed_before_the_grant_is_nothing() {
    let mut scene = Scene::new();
    let who = scene.inside(0, 200, 300, 1);
    scene.seen(Whose::Of(who), &[], 50, 100);
    scene.seen(Whose::Nobodys, &[], 110, 150);
    scene.seen(Whose::Of(who), &[], 198, 302);
    scene.shows(&[]);
}

/// Returns a waiter that is queued from 110 ms and served at 900, after another at 500.
fn overtaking(asked: u64, in_line: bool) -> (Scene, Who) {
    let mut scene = Scene::new();
    let other = scene.inside(asked, 500, 600, 1);
    let served = scene.inside(0, 900, 1_000, 2);
    let line = if in_line { vec![served, other] } else { vec![served] };
    scene.seen(Whose::Strange, &line, 110, 490);
    (scene, served)
}

const OVERTAKEN: &[&str] = &["was served before it"];

#[test]
fn a_newcomer_that_is_served_first_is_found() {
    overtaking(400, false).0.shows(OVERTAKEN);
}

#[test]
fn one_that_stood_behind_and_is_served_first_is_found() {
    overtaking(50, true).0.shows(OVERTAKEN);
}

#[test]
fn one_that_may_have_come_first_is_not() {
    overtaking(100, false).0.shows(&[]);
}

#[test]
fn one_that_does_not_stand_in_line_may_be_served_first() {
    let (mut scene, _) = overtaking(400, false);
    scene.0.attempts[0].queued = false;
    scene.shows(&[]);
}

#[test]
fn one_that_was_called_and_did_not_come_has_lost_its_turn() {
    let (mut scene, served) = overtaking(300, false);
    scene.seen(Whose::Of(served), &[], 491, 495);
    scene.shows(&[]);
}

#[test]
fn one_that_could_not_come_may_be_overtaken() {
    let all = [Ailment::Flushed, Ailment::Hung, Ailment::Rotated].map(|ailment| (ailment, On::All));
    for (ailment, on) in all.into_iter().chain([(Ailment::FrozenAlone, On::Attempt(1))]) {
        let (mut scene, _) = overtaking(400, false);
        scene.befalls(ailment, on, 450, 460);
        scene.shows(&[]);
    }
}

#[test]
fn one_that_may_have_had_its_turn_unseen_may_be_overtaken() {
    for (from, to, found) in [(401, 900, OVERTAKEN), (400, 900, &[][..]), (0, 499, OVERTAKEN), (501, 1_100, OVERTAKEN)]
    {
        let (mut scene, _) = overtaking(400, false);
        scene.0.unwatched.push((at(from), at(to)));
        scene.shows(found);
    }
}

#[test]
fn a_lock_that_stays_free_while_somebody_waits_is_found() {
    for (until, found) in [(3_300, &[][..]), (3_500, &["job was free for 3.000 s"])] {
        let mut scene = Scene::new();
        scene.inside(0, until, until + 10, 1);
        scene.seen(Whose::Nobodys, &[], 10, until);
        scene.shows(found);
    }
    // Nobody looked for a while: it may have been another's meanwhile.
    let mut scene = Scene::new();
    scene.inside(0, 3_500, 3_510, 1);
    scene.seen(Whose::Nobodys, &[], 10, 1_800);
    scene.seen(Whose::Nobodys, &[], 2_000, 3_500);
    scene.shows(&[]);
}

#[test]
fn whoever_is_frozen_or_without_a_server_does_not_wait() {
    for (ailment, on) in [(Ailment::FrozenAlone, On::Attempt(0)), (Ailment::Down, On::All)] {
        let mut scene = Scene::new();
        scene.inside(0, 9_000, 9_010, 1);
        scene.befalls(ailment, on, 2_000, 6_000);
        scene.seen(Whose::Nobodys, &[], 10, 8_990);
        scene.shows(&[]);
    }
}

#[test]
fn one_that_never_ends_or_ends_in_an_unknown_way_is_found() {
    let mut scene = Scene::new();
    let stuck = scene.asks(0, 0);
    scene.0.attempts[stuck].ended = None;
    let broken = scene.asks(0, 10);
    scene.0.attempts[broken].ended = Some((at(10), "70".into()));
    let without_a_guard = scene.asks(0, 10);
    scene.0.attempts[without_a_guard].ended = Some((at(10), "70".into()));
    scene.befalls(Ailment::GuardKilled, On::Attempt(without_a_guard), 5, 5);
    scene.shows(&["c0 has waited for ever", "c1 exited with 70"]);
}

#[test]
fn what_is_left_behind_is_found() {
    let mut scene = Scene::new();
    scene.0.left.push(Left::of_nobody("lock:job".into()));
    let (killed, left, lasting) = (scene.asks(0, 10), scene.asks(0, 10), scene.asks(0, 10));
    scene.0.attempts[killed].ended = Some((at(10), "signal 9".into()));
    scene.0.attempts[left].ended = Some((at(10), "75".into()));
    scene.0.attempts[lasting].outlasted = true;
    for who in [killed, left, lasting] {
        scene.0.left.push(Left { what: format!("the place of c{who}"), of: Some(who) });
    }
    scene.shows(&["left behind: lock:job", "left behind: the place of c1"]);
}

#[test]
fn readers_share_and_are_no_overlap() {
    let mut scene = Scene::new();
    for n in 0..20 {
        scene.reads(0, 100 + n, 500, 1);
    }
    scene.shows(&[]);
}

#[test]
fn a_writer_among_readers_is_found_whoever_came_first() {
    let mut scene = Scene::new();
    scene.reads(0, 100, 500, 1);
    scene.reads(0, 110, 450, 1);
    scene.inside(0, 400, 600, 2);
    scene.shows(&["c0, c1 and c2 overlap by 50.000 ms in job"]);
    let mut scene = Scene::new();
    scene.inside(0, 100, 500, 1);
    scene.reads(0, 400, 600, 2);
    scene.shows(&["c0 and c1 overlap"]);
}

#[test]
fn as_many_as_there_are_slots_may_hold_a_lock_and_no_more() {
    for (third, found) in [(301, &[][..]), (299, &["c0, c1 and c2 overlap by 1.000 ms in job, where 2 may hold it"])] {
        let mut scene = Scene::new();
        scene.slotted((0, 2), 0, 100, 300, 1);
        scene.slotted((1, 2), 0, 110, 400, 2);
        scene.slotted((if third == 301 { 0 } else { 2 }, 3), 0, third, 350, 3);
        scene.shows(found);
    }
}

#[test]
fn the_least_limit_of_those_who_are_there_counts() {
    // Two of three slots, and a reader; another reader with one who said two.
    let mut scene = Scene::new();
    scene.slotted((0, 3), 0, 100, 500, 1);
    scene.slotted((1, 3), 0, 110, 500, 2);
    scene.reads(0, 120, 500, 1);
    scene.shows(&[]);
    let mut scene = Scene::new();
    scene.reads(0, 100, 500, 1);
    scene.reads(0, 110, 500, 1);
    scene.slotted((0, 2), 0, 120, 500, 2);
    scene.shows(&["where 2 may hold it"]);
    let mut scene = Scene::new();
    scene.slotted((0, 1), 0, 100, 500, 1);
    scene.reads(0, 110, 500, 2);
    scene.shows(&["c0 and c1 overlap"]);
}

#[test]
fn a_slot_that_two_have_at_once_is_found() {
    for (at, found) in [(499, &["c0 and c1 overlap by 1.000 ms in job, both in slot 1"][..]), (501, &[])] {
        let mut scene = Scene::new();
        scene.slotted((1, 5), 0, 100, 500, 1);
        scene.slotted((1, 3), 0, at, 600, 2);
        scene.shows(found);
    }
}

#[test]
fn a_slot_that_nobody_asked_for_is_found() {
    let slot = |number, of| Some(Slot { number, of });
    for (mode, told) in [
        (Mode::Slots(3), None),
        (Mode::Slots(3), slot(3, 3)),
        (Mode::Slots(3), slot(0, 2)),
        (Mode::Shared, slot(0, 3)),
        (Mode::Exclusive, slot(0, 1)),
    ] {
        let mut scene = Scene::new();
        let who = scene.inside(0, 100, 200, 1);
        scene.0.attempts[who].mode = mode;
        scene.told(who, told);
        scene.shows(&["and asked for"]);
    }
}

#[test]
fn whoever_has_lost_its_share_does_not_count() {
    for (thawed, found) in [(4_950, &[][..]), (4_850, &["where 2 may hold it"])] {
        for latest_is_reader in [false, true] {
            let mut scene = Scene::new();
            scene.slotted((0, 2), 0, 100, 6_000, 1);
            let old = scene.slotted((1, 2), 0, 110, 5_000, 2);
            match latest_is_reader {
                true => scene.reads(0, 4_900, 5_300, 1),
                false => scene.slotted((1, 2), 0, 4_900, 5_300, 3),
            };
            scene.befalls(Ailment::FrozenAlone, On::Attempt(old), 1_000, thawed);
            scene.shows(found);
        }
    }
}

#[test]
fn a_generation_that_was_forgotten_goes_on_beside_the_next_until_it_notices() {
    for (forgotten, found) in [(3_600, &[][..]), (3_400, &["overlap by 100.000 ms"])] {
        let mut scene = Scene::new();
        scene.slotted((0, 2), 0, 100, 5_000, 1);
        scene.slotted((1, 2), 0, 100, 5_000, 2);
        scene.befalls(Ailment::Deleted, On::Name(0), forgotten, forgotten);
        scene.inside(4_000, 4_900, 5_300, 3);
        scene.shows(found);
    }
}

#[test]
fn the_fence_of_a_slot_is_above_that_of_whoever_had_it() {
    for (fence, found) in [(7, &["with fence 7, after c0 with 7"][..]), (8, &[])] {
        let mut scene = Scene::new();
        scene.slotted((0, 2), 0, 100, 200, 7);
        scene.slotted((1, 2), 0, 110, 500, 9);
        scene.slotted((0, 2), 0, 300, 400, fence);
        scene.shows(found);
    }
}

#[test]
fn the_fence_of_a_share_is_above_that_of_whoever_had_the_lock_alone() {
    for (fence, found) in [(7, &["with fence 7, after c0 with 7"][..]), (8, &[])] {
        for reads in [false, true] {
            let mut scene = Scene::new();
            scene.inside(0, 100, 200, 7);
            match reads {
                true => scene.reads(0, 300, 400, fence),
                false => scene.slotted((0, 2), 0, 300, 400, fence),
            };
            scene.shows(found);
        }
    }
}

#[test]
fn the_fence_of_one_alone_is_above_all_that_were_there_before() {
    for (fence, found) in [(9, &["with fence 9, after c1 with 9"][..]), (10, &[])] {
        let mut scene = Scene::new();
        scene.reads(0, 100, 200, 7);
        scene.slotted((0, 2), 0, 110, 200, 9);
        scene.inside(0, 300, 400, fence);
        scene.shows(found);
    }
}

#[test]
fn readers_who_hold_a_lock_together_have_the_same_fence() {
    for (fence, found) in [(7, &[][..]), (8, &["with fence 8, together with c0 with 7"])] {
        let mut scene = Scene::new();
        scene.reads(0, 100, 300, 7);
        scene.reads(0, 200, 400, fence);
        scene.shows(found);
    }
    // Apart, each has its own.
    let mut scene = Scene::new();
    scene.reads(0, 100, 200, 7);
    scene.reads(0, 300, 400, 8);
    scene.shows(&[]);
}

#[test]
fn one_that_goes_on_after_its_share_was_seen_to_be_gone_is_found() {
    for (holders, found) in [(vec![1], &["c0 went on in job"][..]), (vec![0, 1], &[])] {
        let mut scene = Scene::new();
        let who = scene.reads(0, 100, 500, 1);
        scene.seen(Whose::Shared(vec![who, 1]), &[], 90, 300);
        scene.seen(Whose::Shared(holders), &[], 310, 900);
        scene.shows(found);
    }
}

/// Returns two readers behind somebody, of which the second enters first, 20 ms before the first one. The first was
/// last seen in the queue at `seen`.
fn readers_in_line(seen: u64) -> (Scene, Who) {
    let mut scene = Scene::new();
    let first = scene.reads(0, 520, 600, 1);
    let second = scene.reads(50, 500, 600, 1);
    scene.seen(Whose::Strange, &[first, second], 110, 490);
    scene.seen(Whose::Shared(vec![second]), &[first], 491, seen);
    (scene, first)
}

#[test]
fn readers_that_come_in_together_may_enter_in_any_order() {
    readers_in_line(499).0.shows(&[]);
}

#[test]
fn a_reader_that_enters_while_one_before_it_stands_in_line_is_found() {
    readers_in_line(510).0.shows(OVERTAKEN);
}

#[test]
fn a_reader_that_passes_a_writer_in_line_is_found() {
    let (mut scene, _) = overtaking(400, false);
    scene.0.attempts[0].mode = Mode::Shared;
    scene.shows(OVERTAKEN);
}

/// Returns a waiter that is first in the queue until it enters, beside a reader that stays.
fn beside_a_reader(until: u64) -> (Scene, Who) {
    let mut scene = Scene::new();
    let reader = scene.reads(0, 5, until + 100, 1);
    let waiter = scene.slotted((0, 3), 0, until, until + 10, 2);
    scene.seen(Whose::Shared(vec![reader]), &[waiter], 10, 700);
    let (other, left) = (scene.asks(0, 9_000), scene.asks(0, 650));
    scene.seen(Whose::Shared(vec![reader]), &[left, waiter, other], 701, until);
    (scene, waiter)
}

#[test]
fn room_for_the_first_that_is_not_given_to_it_is_found() {
    for (until, found) in [(3_300, &[][..]), (3_500, &["job had room for 3.000 s"])] {
        beside_a_reader(until).0.shows(found);
    }
}

#[test]
fn there_is_no_room_for_one_that_wants_fewer_holders_or_to_be_alone() {
    let mut scene = Scene::new();
    let holders: Vec<Who> = (0..2).map(|n| scene.slotted((n, 3), 0, 5 + n, 8_000, 1 + n)).collect();
    let waiter = scene.slotted((0, 2), 0, 8_100, 8_200, 4);
    scene.seen(Whose::Shared(holders), &[waiter], 10, 8_000);
    scene.shows(&[]);
    let mut scene = Scene::new();
    let reader = scene.reads(0, 5, 8_000, 1);
    let (writer, behind) = (scene.inside(0, 8_100, 8_200, 2), scene.reads(0, 8_300, 8_400, 3));
    scene.seen(Whose::Shared(vec![reader]), &[writer, behind], 10, 8_000);
    scene.shows(&[]);
}

#[test]
fn room_for_one_that_is_frozen_or_has_its_share_reserved_is_nothing() {
    let (mut scene, waiter) = beside_a_reader(5_000);
    scene.befalls(Ailment::FrozenAlone, On::Attempt(waiter), 2_000, 2_500);
    scene.shows(&[]);
    let (mut scene, waiter) = beside_a_reader(5_000);
    for sight in &mut scene.0.sights {
        sight.whose = Whose::Shared(vec![0, waiter]);
    }
    scene.shows(&[]);
}

/// Returns what a server is seen to do that has granted a lock to an attempt, by this claim.
fn granted(key: &str, claim: &str, who: Who, fence: u64) -> Trace {
    let token = Token(format!("nx1:{claim}:u@h:1:1:c{who}:"));
    let grants = vec![Granted { key: key.into(), token, fence, slot: Some(0) }];
    Trace { steps: 1, grants, ..Trace::default() }
}

#[test]
fn a_command_that_no_server_granted_the_lock_is_found() {
    let begun = |traces: Vec<Trace>| {
        let mut scene = Scene::new();
        scene.inside(0, 5, 100, 1_000_000_000);
        scene.0.traces = traces;
        scene
    };
    let no_grant = &["which no grant was"][..];
    let seen = |key: &str, who, fence| vec![granted(key, "one", who, fence)];
    begun(seen("lock:job", 0, 1_000_000_000)).shows(&[]);
    begun(seen("lock:job", 1, 1_000_000_000)).shows(no_grant);
    begun(seen("lock:job", 0, 1_000_000_001)).shows(no_grant);
    begun(seen("lock:other", 0, 1_000_000_000)).shows(no_grant);
    begun(vec![Trace::default()]).shows(no_grant);
    let unseen = |gaps, missed| begun(vec![Trace { gaps, missed, ..Trace::default() }]);
    unseen(vec![(1_000_500_000, 1_000_600_000)], Vec::new()).shows(&[]);
    unseen(vec![(1_002_000_000, 1_003_000_000)], Vec::new()).shows(no_grant);
    unseen(Vec::new(), vec![("lock:job".into(), (999_999_000, 1_000_001_000))]).shows(&[]);
    unseen(Vec::new(), vec![("lock:other".into(), (999_999_000, 1_000_001_000))]).shows(no_grant);
    let mut without_a_fence = begun(seen("lock:job", 0, 1_000_000_000));
    without_a_fence.0.stamps[0].word = Word::Enter(Terms::default());
    without_a_fence.shows(no_grant);
}

#[test]
fn a_command_that_a_minority_of_the_servers_granted_the_lock_is_found() {
    let voted = |claims: [Option<&str>; 5]| {
        let mut scene = Scene::new();
        scene.inside(0, 5, 100, 1_000_000_000);
        scene.0.voted = true;
        // Each gives a fence of its own.
        let trace = |(at, claim): (u64, Option<&str>)| {
            claim.map_or_else(Trace::default, |claim| granted("lock:job", claim, 0, 1_000_000_000 - at))
        };
        scene.0.traces = (0..).zip(claims).map(trace).collect();
        scene
    };
    let (one, two) = (Some("one"), Some("two"));
    let no_grant = &["which no grant was"][..];
    voted([one, one, one, None, None]).shows(&[]);
    voted([one, one, None, None, None]).shows(no_grant);
    voted([one, one, two, two, None]).shows(no_grant);
    let mut unseen = voted([one, one, None, None, None]);
    unseen.0.traces[3].gaps = vec![(999_000_000, 1_000_000_001)];
    unseen.shows(&[]);
}

#[test]
fn an_end_for_which_there_was_no_reason_is_found() {
    let ended = |how: &str, changes: &dyn Fn(&mut Scene)| {
        let mut scene = Scene::new();
        let who = scene.asks(0, 10);
        scene.0.attempts[who].may_be_refused = false;
        scene.0.attempts[who].ended = Some((at(10), how.into()));
        changes(&mut scene);
        scene
    };
    for how in ["0", "70", "75", "124", "129", "130", "143"] {
        ended(how, &|_| {}).shows(&["and was never inside"]);
    }
    ended("75", &|scene| scene.0.attempts[0].may_be_refused = true).shows(&[]);
    ended("124", &|scene| scene.0.attempts[0].is_limited = true).shows(&[]);
    ended("143", &|scene| scene.befalls(Ailment::Cancelled, On::Attempt(0), 5, 6)).shows(&[]);
    ended("143", &|scene| scene.befalls(Ailment::Cancelled, On::Attempt(1), 5, 6)).shows(&["exited with 143"]);
    ended("143", &|scene| scene.befalls(Ailment::Hung, On::All, 5, 6)).shows(&[]);
    ended("143", &|scene| scene.befalls(Ailment::ScriptsForgotten, On::All, 5, 6)).shows(&["exited with 143"]);
}

#[test]
fn a_holder_that_was_superseded_had_a_reason_to_end() {
    let superseded = |theirs: bool, other: usize, asked: u64| {
        let mut scene = Scene::new();
        let who = scene.inside(100, 200, 300, 1);
        scene.0.attempts[who].ended = Some((at(400), "143".into()));
        let newer = scene.asks(asked, asked + 900);
        scene.0.names.push("other".into());
        scene.0.attempts[newer].name = other;
        scene.0.attempts[who].supersedes_holders = true;
        scene.0.attempts[newer].supersedes_holders = theirs;
        scene
    };
    superseded(true, 0, 250).shows(&[]);
    for scene in [superseded(false, 0, 250), superseded(true, 1, 250), superseded(true, 0, 401)] {
        scene.shows(&["exited with 143"]);
    }
}
