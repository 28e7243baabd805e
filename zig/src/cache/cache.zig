//! The cache room: records in memory between the search and the device. It answers hit, in flight or miss; it never
//! reads, so that a test can drive it with plain calls.
const record_cache = @import("record_cache.zig");

pub const Cache = record_cache.Cache;
pub const Options = record_cache.Options;
pub const Policy = record_cache.Policy;
pub const Lookup = record_cache.Lookup;
pub const Pin = record_cache.Pin;
pub const Reservation = record_cache.Reservation;
pub const Room = record_cache.Room;
pub const Tag = record_cache.Tag;
pub const tag_max = record_cache.tag_max;
pub const Stats = @import("stats.zig").Stats;

test {
    _ = record_cache;
    _ = @import("model_test.zig");
    _ = @import("stress_test.zig");
}
