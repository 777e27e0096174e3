//! The promises about a lock, written once and tested with every kind of authority.
//!
//! Tests here inspect a lock only through nxlock. Where kinds may differ, a test requires only what all of them
//! provide.

mod asking;
mod breaking;
mod exclusion;
mod first;
mod history;
mod lease;
mod leaving;
mod lock_status;
mod loss;
mod names;
mod nested;
mod queue;
mod refusal;
mod run;
mod several;
mod sharing;
mod superseding;

use crate::support::{Cluster, Five, Local, Pool, Redis, Secure, Sentinels};

/// A cluster takes seconds to start.
static CLUSTERS: Pool<Cluster> = Pool::of(Cluster::of_masters);

/// Makes a test of each promise for each kind, and of each promise about the queue for the kinds that have one. The
/// compiler reports a promise that is not listed as dead code.
macro_rules! every_kind {
    (
        with_a_line { $($kind:ident: $start:expr,)* }
        without_a_line { $($lineless:ident: $begin:expr,)* }
        each $promises:tt
        of_the_line $queueing:tt
    ) => {
        $(mod $kind {
            use super::*;
            every_kind!($start, $promises);
            every_kind!($start, $queueing);
        })*
        $(mod $lineless {
            use super::*;
            every_kind!($begin, $promises);
        })*
    };
    ($start:expr, { $($file:ident { $($promise:ident)* })* }) => {
        $($(#[test]
        fn $promise() {
            $file::$promise(&$start);
        })*)*
    };
}

every_kind! {
    with_a_line {
        local: Local::start(),
        redis_unix: Redis::start(),
        // Over TCP, and TLS with certificates of both sides.
        redis_tls: Secure::mutual(),
        sentinel: Sentinels::of_one(),
        cluster: CLUSTERS.lend(),
    }
    without_a_line {
        quorum: Five::start(),
    }
    each {
        lease {
            a_lock_is_taken_renewed_shown_and_given_back
            a_renewal_may_also_shorten_what_is_left
            a_renewal_from_within_does_not_shorten_what_a_run_counts_on
            a_renewal_from_within_may_lengthen_what_a_run_counts_on
            a_token_is_an_argument_or_in_the_environment_or_on_stdin
            a_lock_of_somebody_else_is_not_touched
            a_lock_that_has_expired_is_said_to_have
            releasing_twice_is_not_success_twice
            a_lock_that_nobody_gave_back_ends_by_itself_and_not_before
            a_lock_whose_token_cannot_be_printed_is_given_back
        }
        breaking {
            a_lock_is_broken_by_the_id_that_status_shows
            nobody_breaks_a_lock_whose_holder_has_changed
            a_refusal_says_how_to_break_the_lock
            the_command_that_breaks_a_lock_is_right_for_an_odd_name
            the_command_that_breaks_a_lock_is_right_for_a_prefix_given_as_an_option
        }
        refusal {
            who_does_not_wait_is_refused_at_once
            who_waits_for_so_long_is_refused_then
            the_status_for_busy_can_be_chosen
            a_refusal_names_the_holder
            a_refusal_is_a_document_too
        }
        names {
            whatever_the_name_it_can_be_taken_listed_and_given_back
            locks_of_different_names_do_not_meet
            status_is_1_if_any_that_was_asked_for_is_free
            the_same_name_under_another_prefix_is_another_lock
        }
        run {
            a_job_longer_than_its_lease_keeps_its_lock
            the_shortest_lease_is_kept_as_well
            a_command_told_to_stop_gives_its_lock_to_the_next
            a_command_that_cannot_be_started_does_not_keep_the_name
            a_run_that_is_killed_gives_its_lock_back_once_its_command_is_gone
            a_name_stays_locked_for_at_least_as_long_as_asked_for
            at_least_may_be_longer_than_the_lease
            a_command_that_took_longer_than_at_least_frees_the_name_at_once
        }
        loss {
            a_lock_that_is_taken_away_stops_the_whole_tree_before_the_lease_could_have_ended
            a_command_told_to_stop_may_clean_up_and_still_it_is_76
            a_loss_may_be_put_up_with
            a_loss_found_only_at_the_end_is_a_loss
            the_lock_of_the_next_one_survives_our_late_release
            nothing_of_the_tree_runs_on_when_we_wake_up_after_the_lease
        }
        exclusion {
            callers_who_come_again_and_again_lose_no_update
            fences_rise_however_a_grant_ends
            fences_rise_in_the_order_of_the_grants
        }
        nested {
            asking_again_within_a_run_fails_at_once
            the_status_for_it_can_be_chosen_too
            another_name_within_a_run_works
            two_levels_down_both_names_are_known
            a_program_is_told_that_it_is_nested
            what_stands_in_the_variable_is_believed_only_if_it_holds_the_lock
        }
        several {
            several_locks_are_held_while_a_command_runs_and_no_longer
            if_one_is_held_nothing_is_taken
            the_earlier_ones_are_kept_while_a_later_one_is_waited_for
            a_waiter_for_several_that_is_told_to_leave_leaves_nothing
            one_that_is_lost_while_another_is_waited_for_ends_the_wait
            the_loss_of_one_stops_the_command_and_gives_back_all
            all_are_given_back_if_nxlock_is_killed
            only_the_first_stays_locked_for_at_least_as_long_as_asked_for
            a_script_holds_several_until_one_is_released
            a_script_that_ends_frees_all
            a_script_is_told_of_the_loss_of_one_and_has_none_then
            within_a_run_none_of_its_locks_is_waited_for
            within_a_run_nothing_is_waited_for_together_with_its_lock
            who_asks_in_another_order_waits_in_no_circle
        }
    }
    of_the_line {
        asking {
            who_is_asked_stops_its_command_and_gives_the_lock_to_the_next
            an_asked_command_may_clean_up_and_its_status_counts
            nobody_gets_the_lock_while_an_asked_command_is_deaf_to_term
            a_holder_that_ends_by_itself_meanwhile_has_given_up
            a_holder_may_refuse_to_be_asked
            a_refusal_says_how_to_ask_for_the_lock
            asking_is_a_document
            one_of_several_holders_is_asked
            who_asks_for_a_share_that_is_gone_has_lost_nothing
            a_newer_run_asks_an_older_one_of_its_kind
            a_newer_run_leaves_a_holder_of_another_kind_alone
            a_newer_run_that_gives_up_leaves_the_holder_alone
            of_many_newer_runs_only_the_newest_follows
        }
        history {
            a_recorded_run_is_told_with_who_when_and_how_it_ended
            every_way_to_end_has_its_outcome
            a_run_that_lost_its_lock_is_recorded_as_that
            the_last_runs_are_kept_and_no_more
            a_run_that_is_killed_with_its_guard_never_ended
            the_guard_records_the_end_if_only_nxlock_is_killed
            what_is_done_is_not_done_again
            who_waits_leaves_when_it_is_done
            who_waits_for_one_that_fails_does_it
            of_ten_that_come_at_once_one_does_it
            a_name_that_stays_locked_is_recorded_when_its_command_ends
            each_of_several_holders_has_its_record
            the_histories_of_all_locks_are_listed
            a_run_under_way_is_the_first_line_of_a_history
            what_is_wrong_has_a_status_and_a_line_of_its_own
            a_run_that_goes_on_without_its_lock_has_not_done_it
            a_share_that_was_lost_has_not_done_it
            a_command_that_was_told_to_stop_and_says_that_it_succeeded_has
            runs_that_always_vanish_are_not_kept_for_ever
            who_is_interrupted_before_its_command_has_no_record
        }
        exclusion {
            a_crowd_at_once_loses_no_update
        }
        breaking {
            breaking_the_holders_lock_hands_it_to_the_next
            a_holder_says_who_has_broken_its_lock_and_why
            a_holder_whose_lock_another_has_is_told_who_broke_it
        }
        refusal {
            a_refusal_tells_how_many_wait
            a_refusal_after_a_wait_names_the_holder_of_the_end
        }
        names {
            under_any_prefix_those_who_wait_are_listed_with_their_lock_and_served
        }
        lock_status {
            each_waiter_is_shown_with_its_place_and_who_it_is
            a_holder_and_a_waiter_are_known_as_they_say
            since_when_a_lock_is_held_is_counted_from_its_grant
        }
        queue {
            a_second_caller_waits_and_gets_it
            twenty_are_served_in_the_order_of_their_coming
            the_dead_in_line_cost_nothing_and_the_rest_keep_their_order
            the_dead_in_line_keep_nobody_out
            a_frozen_head_costs_its_grace_and_is_served_when_it_goes_on
            while_a_lock_is_put_aside_for_a_waiter_nobody_else_gets_it
            a_newcomer_does_not_overtake_when_a_lock_is_handed_on
            a_newcomer_does_not_overtake_when_a_lease_ends
            a_token_that_is_given_back_hands_the_lock_to_the_next
            without_the_queue_one_waits_and_is_not_in_line
            without_the_queue_a_line_that_was_there_before_is_served_afterwards
        }
        sharing {
            one_more_comes_in_only_if_that_fits_everybody
            each_has_the_lowest_slot_that_is_free
            a_slot_stays_the_same_for_the_whole_hold
            when_the_least_limit_leaves_the_next_fits_at_once
            whoever_asks_for_another_number_is_told_that_the_least_counts
            nobody_passes_the_one_who_waits
            one_that_wants_less_is_waited_for_by_those_behind_it
            all_readers_behind_a_writer_come_in_together
            readers_behind_a_writer_come_in_when_it_is_gone
            the_slot_of_one_that_is_killed_goes_to_the_next
            breaking_one_share_leaves_the_others_alone
            a_share_is_renewed_and_given_back_by_its_own_token
            each_share_ends_with_its_own_lease
            a_slot_stays_taken_for_at_least_as_long_as_asked_for
            fences_rise_for_each_slot_and_from_one_generation_to_the_next
            within_a_share_a_further_one_is_granted_at_once_or_not_at_all
            a_command_knows_its_slot
            a_token_comes_with_its_slot
            status_shows_everybody_who_shares_a_lock
            a_refusal_tells_how_many_hold_it
        }
        superseding {
            the_newest_dismisses_older_ones_of_its_kind_and_nobody_else
            who_waits_behind_a_dismissed_one_moves_up
            a_dismissal_is_a_document_and_its_status_can_be_chosen
            one_that_does_not_wait_dismisses_nobody
            a_frozen_one_is_dismissed_however_late_it_asks
            a_dismissed_one_leaves_at_once
            one_that_gives_up_is_not_waited_for
            of_those_who_share_a_lock_it_concerns_only_the_queue
            of_a_crowd_exactly_the_newest_alive_follows
        }
        first {
            one_that_goes_first_is_served_before_those_who_came_before_it
            a_reader_that_goes_first_passes_a_writer_that_waits_and_another_does_not
            the_first_slot_that_is_free_is_for_those_that_go_first
            a_newer_one_dismisses_one_that_went_first_whoever_is_ahead
            one_that_goes_first_and_is_killed_keeps_nobody_waiting
        }
        several {
            deploys_share_what_a_freeze_holds_alone
            a_recorded_run_of_several_is_recorded_under_the_first
            asking_for_one_of_several_stops_the_command
            asking_for_one_that_is_not_in_use_yet_frees_all
            a_newer_run_of_several_takes_over_from_an_older_one
            a_newer_run_takes_over_from_one_that_waits_for_another_lock
        }
        leaving {
            a_waiter_that_is_told_to_leave_leaves_by_that_signal
            who_gives_up_leaves_the_line_at_once_and_the_others_move_up
            who_has_waited_long_enough_leaves_the_line
            one_told_to_leave_while_the_lock_is_put_aside_for_it_passes_it_on
        }
    }
}
