//! Ops with a meter.

use super::ops::Ops;
use crate::meter::{Op, Work};
use crate::{Error, Meter};

/// A set of ops, and the meter that counts their calls.
#[derive(Debug)]
pub(crate) struct Metered<O> {
    pub(super) ops: O,
    pub(super) meter: Meter,
}

impl<O: Ops> Metered<O> {
    /// Runs an op, and counts it when the meter is on.
    pub(super) fn time(
        &mut self,
        op: Op,
        work: impl FnOnce() -> Work,
        run: impl FnOnce(&mut O) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Self { ops, meter } = self;
        meter.time(op, work, || run(ops))
    }
}
