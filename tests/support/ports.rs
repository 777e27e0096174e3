//! Ports for servers that die and come back, or that need two.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// How far from its port a server of a cluster listens for the others.
const BUS: u16 = 10_000;
const FIRST: u16 = 11_000;

/// A port that nobody listens on just now, nor on the one that goes with it in a cluster. Below those that
/// the kernel gives to whoever connects: it will be free again for a server that comes back.
pub fn steady_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(7919);
    loop {
        let at = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % u32::from(BUS);
        let port = FIRST + u16::try_from(at).expect("it is less than that");
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + BUS) {
            return port;
        }
    }
}
