//! Text for people: numbers, times, terminals, and redaction of secrets.

mod count;
pub mod duration;
mod interval;
mod list;
pub mod number_format;
mod object_url;
mod printable;
mod redaction;
mod secret_url;
pub mod unix_time;
mod wording;

pub use count::count;
pub use interval::Interval;
pub use list::list;
pub use object_url::{OBJECT_STORES, is_remote};
pub use printable::printable;
pub use redaction::{is_redacted, redacted};
pub use secret_url::SecretUrl;
pub use wording::in_user_words;
