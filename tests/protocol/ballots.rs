//! Every order in which the messages of two who want a majority of three servers can arrive, searched to the end.
//!
//! A request is carried out by its server at any time after it was sent, or never; of one connection, in order. Who
//! gives a ballot up sends what undoes it behind its requests. Who begins another, or gives the lock back, uses a new
//! connection where a reply is outstanding.
//! What is claimed, in every reachable state: at most one holds the lock, and who holds it later has a higher fence.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

const SERVERS: usize = 3;
const QUORUM: usize = 2;

/// Of whom, and of which of its ballots.
type Vote = (usize, u8);
type Fence = u8;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Request {
    Acquire(Vote),
    Raise(Vote, Fence),
    Release(Vote),
}

#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Server {
    vote: Option<Vote>,
    fence: Fence,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Voting,
    Raising(Fence),
    Holding(Fence),
    Over,
}

#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    ballot: u8,
    /// What each server has given, and which have raised it.
    granted: [Option<Fence>; SERVERS],
    raised: [bool; SERVERS],
    /// Each server's connections, the current one last, with what was sent and is not carried out.
    sent: [Vec<Vec<Request>>; SERVERS],
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    servers: [Server; SERVERS],
    clients: [Client; 2],
    last: Fence,
}

/// How it is done, so that a test may do it wrongly.
#[derive(Clone, Copy)]
struct Rules {
    /// How often each of the two may try.
    ballots: [u8; 2],
    /// Whether a ballot is won by votes alone: with fences as well, there is less to try in the same time.
    votes_alone: bool,
    /// The value of each ballot.
    value: fn(usize, u8) -> Vote,
    /// Whether a server that was told the fence counts, by its vote.
    counts: fn(Option<Vote>, Vote) -> bool,
}

const VOTES: Rules = Rules {
    ballots: [2, 1],
    votes_alone: true,
    value: |who, ballot| (who, ballot),
    counts: |vote, ours| vote == Some(ours),
};
const FENCES: Rules = Rules { ballots: [1, 1], votes_alone: false, ..VOTES };

impl Client {
    fn sends(&mut self, request: Request) {
        for connections in &mut self.sent {
            connections.last_mut().unwrap().push(request);
        }
    }

    /// Where a reply is outstanding.
    fn connects_anew(&mut self) {
        for connections in &mut self.sent {
            if connections.last().is_none_or(|requests| !requests.is_empty()) {
                connections.push(Vec::new());
            }
        }
    }

    /// What it was told before, it does not go by any more.
    fn enters(&mut self, phase: Phase) {
        self.phase = phase;
        (self.granted, self.raised) = Default::default();
    }
}

impl World {
    fn new() -> World {
        let mut servers: [Server; SERVERS] = Default::default();
        // Their fences differ, as their clocks do.
        servers[0].fence = 3;
        World { servers, clients: Default::default(), last: 0 }
    }

    /// All that may be next; or the promise that one of them breaks.
    fn next(&self, rules: &Rules) -> Result<Vec<World>, String> {
        let mut worlds = Vec::new();
        for who in 0..self.clients.len() {
            for at in 0..SERVERS {
                for connection in 0..self.clients[who].sent[at].len() {
                    worlds.extend(self.carried_out(rules, who, at, connection));
                }
            }
            worlds.extend(self.decided(rules, who)?);
        }
        Ok(worlds)
    }

    /// The first request of a connection. Its reply is heard if it is the current one.
    fn carried_out(&self, rules: &Rules, who: usize, at: usize, connection: usize) -> Option<World> {
        let mut world = self.clone();
        let World { servers, clients, .. } = &mut world;
        let (server, client) = (&mut servers[at], &mut clients[who]);
        let is_current = connection + 1 == client.sent[at].len();
        let requests = &mut client.sent[at][connection];
        if requests.is_empty() {
            return None;
        }
        let request = requests.remove(0);
        if requests.is_empty() && !is_current {
            client.sent[at].remove(connection);
        }
        let ours = (rules.value)(who, client.ballot);
        match request {
            Request::Acquire(vote) => {
                if server.vote.is_none() {
                    server.vote = Some(vote);
                    server.fence += u8::from(!rules.votes_alone);
                }
                if server.vote == Some(vote) && vote == ours && is_current && client.phase == Phase::Voting {
                    client.granted[at] = Some(server.fence);
                }
            }
            Request::Raise(vote, fence) => {
                server.fence = server.fence.max(fence);
                let counts = (rules.counts)(server.vote, vote);
                client.raised[at] |= counts && is_current && matches!(client.phase, Phase::Raising(_));
            }
            Request::Release(vote) => {
                server.vote.take_if(|held| *held == vote);
            }
        }
        Some(world)
    }

    /// What a client may do by itself.
    fn decided(&self, rules: &Rules, who: usize) -> Result<Option<World>, String> {
        let mut world = self.clone();
        let client = &mut world.clients[who];
        let ours = (rules.value)(who, client.ballot);
        match client.phase {
            Phase::Idle if client.ballot < rules.ballots[who] => {
                client.ballot += 1;
                client.enters(Phase::Voting);
                client.connects_anew();
                client.sends(Request::Acquire((rules.value)(who, client.ballot)));
            }
            Phase::Voting => match client.granted.iter().flatten().count() {
                // It may wait for longer as well, which nothing else depends on.
                0..QUORUM => {
                    client.enters(Phase::Idle);
                    client.sends(Request::Release(ours));
                }
                _ if rules.votes_alone => {
                    client.enters(Phase::Holding(0));
                    world.one_holds()?;
                }
                _ => {
                    let fence = client.granted.iter().flatten().max().copied().unwrap();
                    client.enters(Phase::Raising(fence));
                    client.sends(Request::Raise(ours, fence));
                }
            },
            Phase::Raising(fence) if client.raised.iter().filter(|raised| **raised).count() >= QUORUM => {
                client.enters(Phase::Holding(fence));
                world.one_holds()?;
                if fence <= world.last {
                    return Err(format!("the fence did not rise: {fence} after {}", world.last));
                }
                world.last = fence;
            }
            Phase::Holding(_) => {
                client.enters(Phase::Over);
                client.connects_anew();
                client.sends(Request::Release(ours));
            }
            _ => return Ok(None),
        }
        Ok(Some(world))
    }

    fn one_holds(&self) -> Result<(), String> {
        let holders = self.clients.iter().filter(|client| matches!(client.phase, Phase::Holding(_))).count();
        if holders > 1 { Err("two hold the lock".into()) } else { Ok(()) }
    }

    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// How many states there are, or the promise that one of them breaks.
fn explore(rules: &Rules) -> Result<usize, String> {
    let start = World::new();
    let mut seen = HashSet::from([start.key()]);
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        for next in world.next(rules)? {
            if seen.insert(next.key()) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn whenever_a_message_comes_one_holds_the_lock_and_the_fence_rises() {
    for rules in [VOTES, FENCES] {
        let states = explore(&rules).unwrap_or_else(|why| panic!("{why}"));
        assert!(states > 10_000, "{states} states are too few to prove anything");
    }
}

#[test]
fn one_token_for_all_ballots_of_a_claim_is_noticed() {
    let why = explore(&Rules { value: |who, _| (who, 0), ..VOTES }).expect_err("the explorer does not see it");
    assert_eq!(why, "two hold the lock");
}

#[test]
fn a_fence_that_is_written_where_the_vote_is_another_s_is_noticed() {
    let rules = Rules { counts: |_, _| true, ..FENCES };
    let why = explore(&rules).expect_err("the explorer does not see it");
    assert!(why.starts_with("the fence did not rise"), "{why}");
}
