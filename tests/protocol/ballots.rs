//! Every order in which the messages of two clients that want a majority of three servers can arrive, searched
//! exhaustively.
//!
//! A server executes a request at any time after it was sent, or never; the requests of one connection in order. A
//! client that gives up a ballot sends its release after its requests, on the same connection. A client that starts
//! another ballot, or releases the lock, opens a new connection where a reply is outstanding.
//! The claim, in every reachable state: at most one client holds the lock, and a later holder has a higher fence.

use std::collections::HashSet;
use std::hash::BuildHasher;

use foldhash::quality::FixedState;

const SERVERS: usize = 3;
const QUORUM: usize = 2;

/// A client, and one of its ballots.
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
    /// The fence that each server has granted, and the servers that have raised it.
    granted: [Option<Fence>; SERVERS],
    raised: [bool; SERVERS],
    /// Each server's connections, the current one last, with the requests that were sent and are not executed yet.
    sent: [Vec<Vec<Request>>; SERVERS],
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    servers: [Server; SERVERS],
    clients: [Client; 2],
    last: Fence,
}

/// The rules of the protocol; a test may break one.
#[derive(Clone, Copy)]
struct Rules {
    /// How many ballots each of the two may start.
    ballots: [u8; 2],
    /// Whether votes alone win a ballot. With fences, fewer ballots can be searched in the same time.
    votes_alone: bool,
    /// The vote for which each ballot asks.
    value: fn(usize, u8) -> Vote,
    /// Whether a server that executed the raise counts, by its vote.
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

    /// Opens a new connection where a reply is outstanding.
    fn connects_anew(&mut self) {
        for connections in &mut self.sent {
            if connections.last().is_none_or(|requests| !requests.is_empty()) {
                connections.push(Vec::new());
            }
        }
    }

    /// Enters a phase, and discards earlier replies.
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

    /// Returns all possible next states, or the promise that one of them breaks.
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

    /// Executes the first request of a connection. The client gets the reply if the connection is its current one.
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

    /// Takes the step that a client may take by itself, if there is one.
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
                // It may also wait for longer; nothing else depends on that.
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
        FixedState::default().hash_one(self)
    }
}

/// Returns the number of states, or the promise that one of them breaks.
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
