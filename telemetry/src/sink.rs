//! Interface of the sinks of events.

use super::event::Event;

/// A receiver of events, on the telemetry thread. It must not block for long, because a save waits
/// until the earlier steps are written, and its errors must not end the run.
pub(super) trait Sink: Send {
    /// Begins the steps, the first one after this number of completed steps.
    fn begin_steps(&mut self, _completed_steps: u64) {}

    /// Sets the step during which the following events were emitted, or none.
    fn set_step(&mut self, _step: Option<u64>) {}

    /// Takes one event.
    fn take(&mut self, event: &Event);

    /// Ends the steps.
    fn end_steps(&mut self) {}

    /// Cuts the run short: this process has to end at once.
    fn interrupt(&mut self) {}
}
