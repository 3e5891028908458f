//! Jobs that fail and go on: kills, stops, hangs, and what `launch` makes of them.

mod faults;
mod launching;
