//! Ports for servers that restart, or that need two ports.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Offset of a cluster node's bus port from its port.
const BUS: u16 = 10_000;
const FIRST: u16 = 11_000;

/// Returns a port on which nobody listens now, nor on its bus port. It is below the ephemeral ports, from which the
/// kernel chooses for connect(2): it will be free again for a server that restarts.
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
