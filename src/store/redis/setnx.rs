//! Locks whose key is shared with old `SETNX` clients: the record beside the key.

use redis::{Value, cmd};

use super::reply::{self, Operation};
use super::scripts::{Base, Script};
use super::{Server, how};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::lock::{Claim, LockState, Token, Ttl, Upkeep, companion_key};
use crate::store::Renewed;
use crate::text::Tainted;
use crate::wait::Limit;

/// The last record found beside a bare number: it does not change as long as the number does not.
#[derive(Default)]
pub struct LastRecord(Option<(Value, Value)>);

impl Server {
    /// Returns a lock's value or, if that is a bare number of nxlock's, the record beside it, which says who holds the
    /// lock.
    pub(super) fn told(&mut self, operation: &Operation<'_>, value: &Value, limit: Limit<'_>) -> Value {
        let Some(number) = reply::text(value).map(Tainted::into_raw).filter(|text| Token::is_number(text.as_bytes()))
        else {
            return value.clone();
        };
        if let Some((_, record)) = self.told.0.as_ref().filter(|(known, _)| known == value) {
            return record.clone();
        }
        let key = operation.name.map(|name| self.prefix.key(name)).unwrap_or_default();
        self.turn_to(operation);
        // Without a reply the holder is unknown, as without a record.
        let Ok(record) = self.client.ask(cmd("GET").arg(companion_key(&key, "holder")), limit) else {
            return value.clone();
        };
        let its = number.parse::<Token>().is_ok_and(|token| {
            reply::text(&record).map(Tainted::into_raw).is_some_and(|record| {
                record.starts_with(&token.record_begin()) && Token::read(record.as_bytes()).is_some()
            })
        });
        if !its {
            return value.clone();
        }
        self.told = LastRecord(Some((value.clone(), record.clone())));
        record
    }

    /// Parses the state of a lock that a script returned; on a key shared with SETNX clients, with the record beside
    /// it.
    pub(super) fn state(
        &mut self,
        operation: &Operation<'_>,
        seen: &[Value],
        limit: Limit<'_>,
    ) -> Result<LockState, Error> {
        let mut seen = seen.to_vec();
        if let Some(value) = seen.first_mut() {
            *value = self.told(operation, value, limit);
        }
        reply::state(&seen).ok_or_else(|| self.senseless(operation))
    }

    pub(super) fn renew_beside_setnx(
        &mut self,
        operation: &Operation<'_>,
        claim: &Claim,
        ttl: Ttl,
        limit: Limit<'_>,
    ) -> Result<Renewed, Error> {
        let asked = Moment::now();
        let record = match &claim.beside_setnx {
            Some(beside) => beside.record.clone(),
            None => claim.token.record_begin(),
        };
        let may_shorten = claim.may_shorten() || self.is_lease_only(operation, &claim.token, limit);
        let args = [claim.token.as_str(), &ttl.millis().to_string(), how(may_shorten), &record];
        let script = Script::Renew(Base::BesideSetnx);
        let answer = self
            .only_by_script(operation, claim, |server| server.script_unless_moving(operation, script, &args, limit));
        let answer = match answer {
            Err(error) if error.kind == ErrorKind::WrongType => {
                return Ok(Renewed::NotYours(reply::wrong_type("another type")));
            }
            answer => answer?,
        };
        let Some(answer) = answer else {
            return self.renew_moving_beside_setnx(operation, &claim.token, ttl, may_shorten, limit);
        };
        self.renewed(operation, &answer, ttl.believed_until(asked), limit)
    }

    /// Returns whether the record beside a bare number says that no process renews the lock.
    fn is_lease_only(&mut self, operation: &Operation<'_>, token: &Token, limit: Limit<'_>) -> bool {
        let record = self.told(operation, &Value::BulkString(token.as_str().as_bytes().to_vec()), limit);
        reply::bytes(&record).and_then(Token::read).is_some_and(|told| told.terms.upkeep == Upkeep::LeaseOnly)
    }
}
