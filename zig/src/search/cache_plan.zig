//! The cache within a memory budget. It gets the remainder after codes, links and page directory: for records with links
//! on disk, for whole pages with links in memory.
const std = @import("std");
const cache_room = @import("cache");
const index = @import("index");
const ablations = @import("ablations.zig");
const record = @import("record.zig");
const Shared = @import("shared.zig").Shared;

/// Below this many slots a cache holds nothing long enough to be met again.
const slots_min = 64;

/// A cache of fewer pages than one in so many changes nothing that a query would notice.
const pages_share_least = 20;

/// What was asked for when the index was opened.
pub const Budget = struct {
    /// For codes, links, page directory and slots together.
    memory_bytes: u64,
    /// Of it, for slots; 0: for none, below zero: what the plan leaves over.
    share: f64 = 0,
    /// For whole pages beside codes and links where `memory_bytes` is 0, which limits nothing.
    pages_bytes: u64 = 0,

    /// What links must leave over.
    pub fn reserved_bytes(self: Budget) u64 {
        if (!(self.share > 0)) return 0;
        return @intFromFloat(@as(f64, @floatFromInt(self.memory_bytes)) * self.share);
    }
};

/// Null when the budget leaves no room worth having. Navigation in memory leaves a cache little to do where queries do not
/// repeat: there it is only made when it was asked for.
pub fn open_cache(allocator: std.mem.Allocator, shared: *const Shared, budget: Budget) error{OutOfMemory}!?cache_room.Cache {
    const reader = shared.reader;
    if (shared.plan == .pages or (shared.plan == .links_in_memory and !(budget.share > 0))) return null;
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
        .policy = ablations.of(shared).cache_policy,
        .seed = reader.header.rotation_seed,
    });
    if (cache.slot_count() >= slots_min) return cache;
    cache.deinit();
    return null;
}

/// Null where the plan has no page cache, or the budget leaves too few pages.
pub fn open_page_cache(allocator: std.mem.Allocator, shared: *const Shared, budget: Budget) error{OutOfMemory}!?cache_room.PageCache {
    const reader = shared.reader;
    if (shared.plan != .links_in_memory or budget.share >= 0) return null;
    const used = reader.memory_codes_bytes() + reader.memory_links_bytes() + reader.memory_pages_bytes();
    const left_bytes = if (budget.memory_bytes == 0) budget.pages_bytes else budget.memory_bytes -| used;
    const options = page_cache_within(reader, left_bytes) orelse return null;
    return try .init(allocator, options);
}

/// The page cache that fits into a budget; null if it holds too few pages.
pub fn page_cache_within(reader: *const index.Reader, budget_bytes: u64) ?cache_room.PageCacheOptions {
    const options: cache_room.PageCacheOptions = .{
        .page_count = reader.pages_header.page_count,
        .page_size = reader.pages_header.page_size,
        .budget_bytes = @intCast(budget_bytes),
    };
    return if (cache_room.pages_in(options) > options.page_count / pages_share_least) options else null;
}
