//! The record cache of links on disk within a memory budget. It gets the remainder after codes and page directory.
const std = @import("std");
const cache_room = @import("cache");
const index = @import("index");
const record = @import("record.zig");
const Shared = @import("shared.zig").Shared;

/// Below this many slots a cache holds nothing long enough to be met again.
const slots_min = 64;

/// What was asked for when the index was opened.
pub const Budget = struct {
    /// For codes, links, page directory and the cache together.
    memory_bytes: u64,
    /// Of it, for a cache: of records with links on disk, else of pages. 0: none; below zero: what codes and links leave over.
    share: f64 = 0,
    /// For whole pages beside codes and links where `memory_bytes` is 0, which limits nothing.
    pages_bytes: u64 = 0,

    /// What links must leave over.
    pub fn reserved_bytes(self: Budget) u64 {
        if (!(self.share > 0)) return 0;
        return @intFromFloat(@as(f64, @floatFromInt(self.memory_bytes)) * self.share);
    }
};

/// The record cache of links on disk; null when the budget leaves no room worth having.
pub fn open_cache(allocator: std.mem.Allocator, shared: *const Shared, budget: Budget) error{OutOfMemory}!?cache_room.Cache {
    const reader = shared.reader;
    if (shared.plan != .links_on_disk) return null;
    const used = reader.memory_codes_bytes() + reader.memory_links_bytes() + reader.memory_pages_bytes();
    if (budget.memory_bytes <= used) return null;
    const m = reader.manifest();
    // Half again as long as the average list: nearly all records fit, and no slot is mostly empty.
    const list_bytes = m.adjacency_bits / 8 * 3 / 2 / @max(1, m.n) + 2;
    const slot_bytes = std.mem.alignForward(u32, record.slot_bytes(reader.pages_header.lower_bytes, @intCast(@min(list_bytes, record.bytes_max))), 8);
    var cache = try cache_room.Cache.init(allocator, .{
        .vertex_count = reader.n(),
        .budget_bytes = @intCast(budget.memory_bytes - used),
        .slot_bytes = slot_bytes,
    });
    if (cache.slot_count() >= slots_min) return cache;
    cache.deinit();
    return null;
}
