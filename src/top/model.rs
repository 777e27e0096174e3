//! The state of the screen, and how keys change it. Must not know the terminal or the store.

use std::collections::BTreeMap;
use std::time::Duration;

use super::keys::Key;
use super::order::{Sort, order};
use crate::asking::Outcome;
use crate::clock::Moment;
use crate::duration::span;
use crate::error::Error;
use crate::list::{Seen, Subject};
use crate::lock::{Expiry, Holder, HolderId, Ttl, Upkeep, words};
use crate::output::status::LeaseBar;
use crate::report::{Named, Row};
use crate::store::Released;
use crate::text;

pub struct Model {
    began: Moment,
    /// The server and the prefix.
    pub place: String,
    pub every: Duration,
    /// The user named the locks: free ones are shown too.
    pub named: bool,
    /// The result of the last poll, in its order.
    rows: Vec<Row>,
    pub seen: Option<Moment>,
    pub doubts: Vec<String>,
    /// Number of locks that the first poll has found so far.
    pub found: Option<usize>,
    pub error: Option<Error>,
    /// Indices of the rows shown, in display order.
    shown: Vec<usize>,
    pub sort: Sort,
    pub filter: String,
    pub page: Page,
    /// The selected lock, independent of its place in the list.
    selected: Option<Named>,
    /// First visible line.
    pub top: usize,
    /// Number of lines that fitted when last drawn.
    pub height: usize,
    /// Result of the last action.
    pub notice: Option<String>,
    /// The request to give up that is not answered yet.
    pending: Option<Pending>,
    /// The longest lease seen of each holder.
    leases: BTreeMap<HolderId, Duration>,
}

/// A holder that was asked to give up.
struct Pending {
    lock: Named,
    id: HolderId,
    who: String,
    until: Moment,
}

#[derive(Clone)]
pub enum Page {
    List,
    /// One lock and its queue.
    Detail,
    /// The list, while the user types a filter.
    Filter,
    Help,
    /// The question whether to do this to a holder, and the page to return to.
    Question(Action, Named, Box<Holder>, Box<Page>),
}

/// An action on a holder, which the user confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask it to give up.
    Ask,
    /// Take the lock from it.
    Break,
}

impl Action {
    /// Returns the key for it.
    fn key(self) -> Key {
        match self {
            Action::Ask => Key::Char('a'),
            Action::Break => Key::Char('b'),
        }
    }
}

/// An action that the model leaves to its caller.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    Quit,
    Suspend,
    Do(Action, Named, HolderId),
}

/// Delay before the screen shows the progress of the first poll.
const PATIENCE: Duration = Duration::from_secs(1);

impl Model {
    pub fn new(subject: &Subject, place: &str, every: Duration) -> Model {
        let named = subject.named.as_deref().unwrap_or_default();
        let alone = if let [lock] = named { Some(lock.clone()) } else { None };
        Model {
            began: Moment::now(),
            place: crate::text::clean(place),
            every,
            named: subject.named.is_some(),
            rows: Vec::new(),
            seen: None,
            doubts: Vec::new(),
            found: None,
            error: None,
            shown: Vec::new(),
            sort: if named.is_empty() { Sort::Name } else { Sort::AsNamed },
            filter: String::new(),
            page: if alone.is_some() { Page::Detail } else { Page::List },
            selected: alone,
            top: 0,
            height: 1,
            notice: None,
            pending: None,
            leases: BTreeMap::new(),
        }
    }

    /// Returns whether there is something to show.
    pub fn is_begun(&self) -> bool {
        self.has_been_seen() || (self.found.is_some() && self.began.elapsed() > PATIENCE)
    }

    pub fn has_been_seen(&self) -> bool {
        self.seen.is_some()
    }

    pub fn listing(&mut self, found: usize) {
        self.found = Some(found);
    }

    pub fn seen(&mut self, Seen { mut rows, doubts }: Seen) {
        rows.iter_mut().for_each(steady);
        self.doubts = doubts;
        let place = self.place();
        self.leases = rows
            .iter()
            .filter_map(renewed)
            .map(|(id, left)| (id.clone(), self.leases.get(id).copied().unwrap_or_default().max(left)))
            .collect();
        self.rows = rows;
        self.answer();
        self.seen = Some(Moment::now());
        self.error = None;
        self.arrange(place);
    }

    /// Shows an error; the last result stays visible.
    pub fn error(&mut self, error: Error) {
        self.error = Some(error);
    }

    pub fn broken(&mut self, lock: &Named, answer: Result<Released, Error>) {
        self.notice = Some(match answer {
            Ok(Released::Done) => format!("broke \"{}\"", lock.name),
            Ok(Released::NotYours(state) | Released::Lost(state)) => {
                format!("not broken: \"{}\" has changed hands, {}", lock.name, words::now_whose(&state))
            }
            Err(error) => format!("{error}"),
        });
    }

    pub fn asked(&mut self, lock: &Named, answer: Result<Outcome, Error>) {
        self.notice = Some(match answer {
            Ok(Outcome::Yes(holder)) => {
                let (id, who) = (holder.id.clone(), words::who(&holder));
                self.pending =
                    Some(Pending { lock: lock.clone(), id, who, until: Moment::now() + Ttl::RENEWED_WITHIN });
                return;
            }
            Ok(Outcome::Refuses(holder)) => {
                let why = if holder.orphaned.is_some() { format!(": {}", words::ORPHANED) } else { String::new() };
                format!("not asked: {}, cannot be asked to give up \"{}\"{why}", words::who(&holder), lock.name)
            }
            Ok(Outcome::NotTheHolder(state)) => {
                format!("not asked: \"{}\" has changed hands, {}", lock.name, words::now_whose(&state))
            }
            Ok(Outcome::InDoubt(_, error)) => format!("asked or not: {error}"),
            Err(error) => format!("{error}"),
        });
    }

    /// Notes whether a holder that was asked has given up.
    fn answer(&mut self) {
        let Some(Pending { lock, id, who, until }) = &self.pending else { return };
        let still = self.holders(lock).iter().any(|holder| holder.id == *id);
        if !still {
            self.notice = Some(format!("{who}, has given up \"{}\"", lock.name));
            self.pending = None;
        } else if until.passed() {
            self.notice = Some(format!("{who}, was asked to give up \"{}\", and still holds it", lock.name));
            self.pending = None;
        }
    }

    /// Returns what is known of a request to give up that is not answered yet.
    pub fn pending(&self) -> Option<String> {
        let Pending { lock, who, until, .. } = self.pending.as_ref()?;
        let left = Duration::from_secs(until.remaining().as_secs() + 1);
        Some(format!("asked {who}, to give up \"{}\": an answer is due within {}", lock.name, span(left)))
    }

    /// Returns how much is left of the lease of a lock that one holder has.
    pub fn bar(&self, row: &Row) -> Option<LeaseBar> {
        let (id, left) = renewed(row)?;
        let whole = self.leases.get(id).copied().filter(|whole| !whole.is_zero())?;
        let is_renewed = row.status.state.holder.as_ref().is_some_and(|holder| holder.terms.upkeep == Upkeep::Renewed);
        let is_late = is_renewed && whole.saturating_sub(left) > (whole / 2).min(Ttl::RENEWED_WITHIN * 3 / 2);
        Some(LeaseBar { left: left.as_secs_f64() / whole.as_secs_f64(), is_late })
    }

    /// Returns the locks shown, in display order.
    pub fn shown(&self) -> Vec<&Row> {
        self.shown.iter().map(|row| &self.rows[*row]).collect()
    }

    /// Returns the place of the selected lock in the view.
    pub fn place(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.shown.iter().position(|row| self.rows[*row].lock == *selected)
    }

    /// Returns the selected lock and its last row; a lock without a row is free.
    pub fn selected(&self) -> Option<(&Named, Option<&Row>)> {
        let selected = self.selected.as_ref()?;
        Some((selected, self.rows.iter().find(|row| row.lock == *selected)))
    }

    /// Filters and sorts the rows. In a list, if the selected lock is gone, selects the lock that took its place.
    fn arrange(&mut self, place: Option<usize>) {
        self.shown = order(&self.rows, self.sort, &self.filter);
        if matches!(self.page, Page::List | Page::Filter) && self.place().is_none() {
            self.select(place.unwrap_or(0));
        }
    }

    /// Selects the lock at `place`, or the last one.
    fn select(&mut self, place: usize) {
        let last = self.shown.len().checked_sub(1);
        self.selected = last.map(|last| self.rows[self.shown[place.min(last)]].lock.clone());
    }

    pub fn press(&mut self, key: Key) -> Effect {
        self.notice = None;
        match (key, &self.page) {
            (Key::Ctrl('c'), _) | (Key::Char('q'), Page::List | Page::Detail) => return Effect::Quit,
            (Key::Ctrl('z'), _) => return Effect::Suspend,
            // Redraw, which every key does.
            (Key::Ctrl('l'), _) => {}
            (key, Page::Question(action, lock, holder, back)) => {
                let (action, lock, id, back) = (*action, lock.clone(), holder.id.clone(), back.as_ref().clone());
                if key == action.key() {
                    self.page = self.question_about_next(action, lock, &id, back);
                    return Effect::Nothing;
                }
                self.page = back;
                if matches!(key, Key::Char('y' | 'Y')) {
                    return Effect::Do(action, lock, id);
                }
                self.notice = Some(if action == Action::Ask { "not asked" } else { "not broken" }.into());
            }
            (key, Page::Filter) => self.type_filter(key),
            (_, Page::Help) => self.page = Page::List,
            (Key::Escape | Key::Backspace | Key::Char('h'), Page::Detail) => self.go_to(Page::List),
            (key, Page::List) => self.press_in_list(key),
            (key, Page::Detail) => self.press_in_detail(key),
        }
        Effect::Nothing
    }

    fn press_in_list(&mut self, key: Key) {
        let place = self.place().unwrap_or(0);
        match key {
            Key::Enter | Key::Char('l') if self.selected.is_some() => self.go_to(Page::Detail),
            Key::Char('s') => {
                self.sort = self.sort.next(self.named);
                self.arrange(self.place());
            }
            Key::Char('/') => self.page = Page::Filter,
            Key::Char('n') if !self.filter.is_empty() => self.select(place.saturating_add(1) % self.shown.len().max(1)),
            Key::Char('N') if !self.filter.is_empty() => {
                self.select(place.checked_sub(1).unwrap_or(self.shown.len().saturating_sub(1)));
            }
            Key::Escape if !self.filter.is_empty() => {
                self.filter.clear();
                self.arrange(self.place());
            }
            Key::Char('a') => self.question(Action::Ask),
            Key::Char('b') => self.question(Action::Break),
            Key::Char('?') => self.page = Page::Help,
            key => self.select(moved(key, place, self.height, self.shown.len())),
        }
    }

    fn press_in_detail(&mut self, key: Key) {
        match key {
            Key::Char('a') => self.question(Action::Ask),
            Key::Char('b') => self.question(Action::Break),
            Key::Char('?') => self.page = Page::Help,
            // Drawing clamps it to the last line.
            key => self.top = moved(key, self.top, self.height, usize::MAX),
        }
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.page = Page::List,
            Key::Escape => {
                self.filter.clear();
                self.page = Page::List;
            }
            Key::Backspace => _ = self.filter.pop(),
            Key::Ctrl('u') => self.filter.clear(),
            Key::Char(c) if !text::may_fool(c) => self.filter.push(c),
            _ => {}
        }
        self.arrange(self.place());
    }

    fn go_to(&mut self, page: Page) {
        self.page = page;
        self.top = 0;
        self.arrange(self.place());
    }

    /// Returns the question about the holder after this one: a shared lock has several.
    fn question_about_next(&self, action: Action, lock: Named, id: &HolderId, back: Page) -> Page {
        let holders = self.holders(&lock);
        let at = holders.iter().position(|holder| holder.id == *id).map_or(0, |at| at + 1);
        match holders.get(at).or(holders.first()) {
            Some(holder) => Page::Question(action, lock, Box::new((*holder).clone()), Box::new(back)),
            None => back,
        }
    }

    /// Returns those who hold a lock.
    pub fn holders(&self, lock: &Named) -> Vec<&Holder> {
        let row = self.rows.iter().find(|row| row.lock == *lock);
        row.into_iter().flat_map(|row| row.status.state.holders()).collect()
    }

    fn question(&mut self, action: Action) {
        let Some((lock, row)) = self.selected() else { return };
        let state = row.map(|row| &row.status.state);
        match state.and_then(|state| state.holders().next()) {
            Some(holder) => {
                let back = Box::new(self.page.clone());
                self.page = Page::Question(action, lock.clone(), Box::new(holder.clone()), back);
            }
            None if action == Action::Ask => {
                self.notice = Some(format!("\"{}\" has no holder to ask for it", lock.name));
            }
            None => self.notice = Some(format!("\"{}\" has no holder to take it from", lock.name)),
        }
    }
}

/// Returns the holder that has a lock alone, and the rest of its lease.
fn renewed(row: &Row) -> Option<(&HolderId, Duration)> {
    let state = &row.status.state;
    Some((state.holder_id()?, state.expiry.left()?))
}

/// Truncates times to whole seconds: tenths would only flicker on a screen that is redrawn once a second.
fn steady(row: &mut Row) {
    let whole = |time: &mut Duration| *time = Duration::from_secs(time.as_secs());
    row.status.state.holder.iter_mut().for_each(|holder| whole(&mut holder.held));
    let lease = |expiry: &mut Expiry| {
        if let Expiry::In(left) = expiry {
            whole(left);
        }
    };
    lease(&mut row.status.state.expiry);
    for share in row.status.state.shares.iter_mut().flat_map(|shares| &mut shares.held) {
        whole(&mut share.holder.held);
        lease(&mut share.expiry);
    }
    row.status.queue.iter_mut().for_each(|waiter| whole(&mut waiter.waiting));
}

/// Returns the place that a key moves to, of `count` places of which `height` are visible.
fn moved(key: Key, place: usize, height: usize, count: usize) -> usize {
    let to = match key {
        Key::Up | Key::Char('k') | Key::Ctrl('p') => place.saturating_sub(1),
        Key::Down | Key::Char('j') | Key::Ctrl('n') => place.saturating_add(1),
        Key::PageUp | Key::Ctrl('b') => place.saturating_sub(height),
        Key::PageDown | Key::Ctrl('f') | Key::Char(' ') => place.saturating_add(height),
        Key::Home | Key::Char('g') => 0,
        Key::End | Key::Char('G') => usize::MAX,
        _ => place,
    };
    to.min(count.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::LockState;
    use crate::lock::Prefix;
    use crate::store::LockStatus;

    fn seen(model: &mut Model, names: &[&str]) {
        let row = |name: &&str| {
            let state = LockState::of_value(b"x", None, None, crate::clock::wall());
            let lock = Named::new(&name.parse().unwrap(), &Prefix::none());
            Row { lock, status: LockStatus { state, queue: Vec::new(), knows_waiters: true, recorded: None } }
        };
        model.seen(Seen { rows: names.iter().map(row).collect(), doubts: Vec::new() });
    }

    fn selected(model: &Model) -> Option<String> {
        model.selected().map(|(lock, _)| lock.name.to_string())
    }

    #[test]
    fn the_selected_lock_stays_selected_until_it_is_gone() {
        let subject = Subject { named: None, prefix: Prefix::none(), timeout: PATIENCE };
        let mut model = Model::new(&subject, "local:", PATIENCE);
        assert_eq!(model.press(Key::Enter), Effect::Nothing);
        seen(&mut model, &["b", "d", "f"]);
        model.press(Key::Down);
        assert_eq!(selected(&model).unwrap(), "d");
        seen(&mut model, &["a", "b", "c", "d"]);
        assert_eq!(selected(&model).unwrap(), "d");
        seen(&mut model, &["a", "b", "c"]);
        assert_eq!(selected(&model).unwrap(), "c");
        seen(&mut model, &[]);
        assert_eq!(selected(&model), None);
        // On the detail page the selection does not change by itself.
        seen(&mut model, &["a", "b"]);
        model.press(Key::Enter);
        seen(&mut model, &["b"]);
        assert_eq!(selected(&model).unwrap(), "a");
    }
}
