//! Contestants that take turns; each round begins with another one.

pub type Contestant<'a> = Box<dyn FnMut() + 'a>;

/// Calls every contestant once a round. A disturbance of the machine thus affects all of them.
pub fn rounds(count: usize, contestants: &mut [Contestant<'_>]) {
    for round in 0..count {
        let first = round % contestants.len();
        contestants.rotate_left(first);
        contestants.iter_mut().for_each(|contestant| contestant());
        contestants.rotate_right(first);
    }
}
