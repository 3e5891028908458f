//! What takes events.

use super::event::Event;

/// A receiver of events, on the telemetry thread. It must not block for long, because a save waits
/// until the steps before it are written, and its errors must not end the run.
pub(super) trait Sink: Send {
    /// Steps follow, the first one after this number of completed steps.
    fn begin_steps(&mut self, _completed_steps: u64) {}

    /// What follows was told while this step was made, or none.
    fn set_step(&mut self, _step: Option<u64>) {}

    /// Takes one event.
    fn take(&mut self, event: &Event);

    /// No more steps follow.
    fn end_steps(&mut self) {}

    /// The run does not come to its end: somebody waits for this process to end at once.
    fn interrupt(&mut self) {}
}
