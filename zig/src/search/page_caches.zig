//! Whole pages in memory, where codes and links leave room for them: of pages.bin first, and once all of those fit of
//! vectors.bin, too.
const std = @import("std");
const io = @import("io");
const cache_room = @import("cache");
const PageCache = cache_room.PageCache;
const index = @import("index");
const Budget = @import("cache_plan.zig").Budget;
const Shared = @import("shared.zig").Shared;
const File = @import("search_state.zig").File;

/// A cache of fewer pages than one in so many changes nothing that a query would notice.
const share_least = 20;

pub const PageCaches = struct {
    /// By file.
    of: [io.file_count]?PageCache = @splat(null),

    pub const Options = [io.file_count]?cache_room.PageCacheOptions;

    /// Empty where the plan has none, or the budget leaves too few pages.
    pub fn open(allocator: std.mem.Allocator, shared: *const Shared, budget: Budget) error{OutOfMemory}!PageCaches {
        var self: PageCaches = .{};
        errdefer self.deinit();
        const reader = shared.reader;
        if (shared.plan != .links_in_memory or budget.share == 0) return self;
        const used = reader.memory_codes_bytes() + reader.memory_links_bytes() + reader.memory_pages_bytes();
        const left_bytes = if (budget.memory_bytes == 0) budget.pages_bytes else budget.memory_bytes -| used;
        for (within(reader, left_bytes), &self.of) |options, *cache| if (options) |one| {
            cache.* = try .init(allocator, one);
        };
        return self;
    }

    pub fn deinit(self: *PageCaches) void {
        for (&self.of) |*cache| if (cache.*) |*own| own.deinit();
        self.* = .{};
    }

    /// The caches that fit into a budget.
    pub fn within(reader: *const index.Reader, budget_bytes: u64) Options {
        var options: Options = @splat(null);
        const pages: cache_room.PageCacheOptions = .{
            .page_count = reader.pages_header.page_count,
            .page_size = reader.pages_header.page_size,
            .budget_bytes = @intCast(budget_bytes),
        };
        const held = pages.pages();
        if (held <= pages.page_count / share_least) return options;
        options[@intFromEnum(File.pages)] = pages;
        const stored = if (reader.vectors) |*own| own.geometry else return options;
        if (held < pages.page_count) return options;
        const vectors: cache_room.PageCacheOptions = .{
            .page_count = @intCast(stored.page_count(reader.n())),
            .page_size = stored.page_size,
            .budget_bytes = @intCast(budget_bytes - pages.bytes_of_all()),
        };
        if (vectors.pages() > vectors.page_count / share_least) options[@intFromEnum(File.vectors)] = vectors;
        return options;
    }

    pub fn memory_bytes(self: *const PageCaches) u64 {
        var sum: u64 = 0;
        for (&self.of) |*cache| if (cache.*) |*own| {
            sum += own.memory_bytes();
        };
        return sum;
    }

    /// The share of pages of pages.bin that have room.
    pub fn share(self: *const PageCaches) f32 {
        const cache = if (self.of[@intFromEnum(File.pages)]) |*own| own else return 0;
        return @as(f32, @floatFromInt(cache.cache.slot_count())) / @as(f32, @floatFromInt(cache.page_count));
    }
};
