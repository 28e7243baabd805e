//! What of a memory budget becomes record slots: all that codes, links and page directory leave over.
const std = @import("std");
const index = @import("index");
const cache_room = @import("cache");
const record = @import("record.zig");

/// Below this many slots a cache holds nothing long enough to be met again.
const slots_min = 64;

/// Null when the budget leaves no room worth having.
pub fn open_cache(allocator: std.mem.Allocator, reader: *const index.Reader, budget_bytes: u64, policy: cache_room.Policy, seed: u64) error{OutOfMemory}!?cache_room.Cache {
    const used = reader.memory_codes_bytes() + reader.memory_links_bytes() + reader.memory_pages_bytes();
    if (budget_bytes <= used) return null;
    const m = reader.manifest();
    // Half again as long as the average list: nearly all records fit, and no slot is mostly empty.
    const list_bytes = m.adjacency_bits / 8 * 3 / 2 / @max(1, m.n) + 2;
    const slot_bytes = std.mem.alignForward(u32, record.slot_bytes(reader.pages_header.lower_bytes, @intCast(@min(list_bytes, record.bytes_max))), 8);
    var cache = try cache_room.Cache.init(allocator, .{
        .vertex_count = reader.n(),
        .budget_bytes = @intCast(budget_bytes - used),
        .slot_bytes = slot_bytes,
        .policy = policy,
        .seed = seed,
    });
    if (cache.slot_count() >= slots_min) return cache;
    cache.deinit();
    return null;
}
