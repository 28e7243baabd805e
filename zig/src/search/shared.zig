//! Data that all queries of an open index share and none changes, and its caches within a memory budget.
const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const quant = @import("quant");
const graph = @import("graph");
const cache_room = @import("cache");
const index = @import("index");
const io = @import("io");
const layout = @import("layout");
const PageCache = cache_room.PageCache;

/// Entry points that a search looks at, at least, where there are so many: those of the nearest centers, whose distances a
/// query is prepared with anyway. On 14 sets it finds what a look at all of them finds. velo.h names it, too.
pub const entries_looked = 256;

/// A segment of so few rows beside a larger one: to estimate all of them, one by one, takes no longer than a walk.
pub const rows_looked_at = 512;
/// To estimate so many bytes of codes in blocks takes about as long as a walk beside a larger segment (docs/decisions/0028).
const scanned_bytes_max = 512 << 10;

/// walk: a few codes of each page are all that is in memory (walk.zig).
pub const Plan = enum { links_in_memory, links_on_disk, walk };

/// The files that a search reads pages of, by the numbers that devices know them by.
pub const File = enum(u1) { pages, vectors };

pub const Shared = struct {
    reader: *const index.Reader,
    plan: Plan,
    /// Records of links on disk; null when the memory plan leaves nothing for it.
    cache: ?*cache_room.Cache = null,
    /// Whole pages, where codes and links leave memory for them.
    page_caches: ?*PageCaches = null,
    /// The codes of a small segment, for scans.
    blocks: ?quant.Blocks = null,
    /// Vertices drawn evenly over the index, those of one center side by side: a search starts at the best of them around
    /// the centers nearest to the query.
    entries: []u32,
    /// The first entry of each center, and the end of the last ones.
    entry_starts: []u32,
    /// |c|² where distances are asked for; 0 for products.
    center_norms2: []f32,
    /// Their codes side by side, so that looking at all of them runs at the speed of the nearer caches.
    entry_memory: base.AlignedBytes,
    entry_codes: quant.Codes,
    entry_places: []u32, // 0, 1, 2, …

    pub fn init(allocator: std.mem.Allocator, reader: *const index.Reader, plan: Plan) error{OutOfMemory}!Shared {
        const n = reader.n();
        // Codes of pages take their place.
        const entries = if (plan == .walk) try allocator.alloc(u32, 0) else try graph.entry_points(allocator, n, graph.entry_count(n), reader.header.rotation_seed);
        errdefer allocator.free(entries);
        const count: u32 = @intCast(entries.len);
        const params = reader.codes.params;
        const center_count = reader.codes.centers.len / params.dim;
        std.mem.sortUnstable(u32, entries, reader.codes.center_ids, struct {
            fn less(centers: []const u8, a: u32, b: u32) bool {
                return if (centers[a] == centers[b]) a < b else centers[a] < centers[b];
            }
        }.less);
        const starts = try allocator.alloc(u32, center_count + 1);
        errdefer allocator.free(starts);
        const norms2 = try allocator.alloc(f32, center_count);
        errdefer allocator.free(norms2);
        var place: u32 = 0;
        for (norms2, 0..) |*norm2, center| {
            starts[center] = place;
            while (place < count and reader.codes.center_ids[entries[place]] == center) place += 1;
            norm2.* = 0;
            if (reader.codes.form == .product) continue;
            for (reader.codes.centers[center * params.dim ..][0..params.dim]) |value| norm2.* += value * value;
        }
        starts[center_count] = place;
        const code_bytes = params.upper_bytes();
        const memory = try base.AlignedBytes.alloc(quant.Codes.byte_len(params, count), .{});
        errdefer @constCast(&memory).free();
        const factors = try allocator.alloc(u32, count);
        errdefer allocator.free(factors);
        const center_ids = try allocator.alloc(u8, count);
        errdefer allocator.free(center_ids);
        for (entries, factors, center_ids, 0..) |vertex, *pair, *center, i| {
            @memcpy(memory.bytes[i * code_bytes ..][0..code_bytes], reader.codes.code(vertex)[0..code_bytes]);
            pair.* = reader.codes.factors[vertex];
            center.* = reader.codes.center_ids[vertex];
        }
        var codes = reader.codes;
        codes.n = count;
        codes.bytes = memory.bytes;
        codes.factors = factors;
        codes.center_ids = center_ids;
        const places = try allocator.alloc(u32, count);
        for (places, 0..) |*number, i| number.* = @intCast(i);
        return .{ .reader = reader, .plan = plan, .entries = entries, .entry_starts = starts, .center_norms2 = norms2, .entry_memory = memory, .entry_codes = codes, .entry_places = places };
    }

    pub inline fn page_cache_of(self: *const Shared, file: usize) ?*cache_room.PageCache {
        const caches = self.page_caches orelse return null;
        return if (caches.of[file]) |*cache| cache else null;
    }

    /// Codes in blocks, where a scan of all takes no longer than a walk, and the budget leaves room.
    pub fn open_blocks(self: *Shared, budget: Budget) error{OutOfMemory}!void {
        const reader = self.reader;
        const bytes = quant.Blocks.byte_len(reader.codes.params, reader.n());
        if (self.plan != .links_in_memory or reader.n() <= rows_looked_at or bytes > scanned_bytes_max) return;
        const used = reader.memory_codes_bytes() + reader.memory_links_bytes() + reader.memory_pages_bytes();
        if (budget.memory_bytes > 0 and used + bytes > budget.memory_bytes) return;
        self.blocks = try .init(&reader.codes);
    }

    pub fn blocks_bytes(self: *const Shared) u64 {
        return if (self.blocks) |*own| own.memory_bytes() else 0;
    }

    pub fn deinit(self: *Shared, allocator: std.mem.Allocator) void {
        if (self.blocks) |*own| own.deinit();
        allocator.free(self.entry_codes.factors);
        allocator.free(self.entry_codes.center_ids);
        allocator.free(self.entries);
        allocator.free(self.entry_starts);
        allocator.free(self.center_norms2);
        allocator.free(self.entry_places);
        self.entry_memory.free();
    }
};

/// The centers by their distance to the query, which it was prepared with anyway; the nearest first, of equal ones the
/// first. A heap, since few of them are looked at and the order of the others does not matter.
pub const Centers = struct {
    /// The distance as a number of the same order, then the center.
    keys: [base.limits.centers_max]u64,
    len: u32,

    pub fn init(norms2: []const f32, terms: []const f32) Centers {
        var centers: Centers = .{ .keys = undefined, .len = @intCast(norms2.len) };
        for (norms2, terms[0..norms2.len], 0..) |norm2, term, center| {
            const bits: u32 = @bitCast(norm2 + term);
            const sign: u32 = 1 << 31;
            const rank = if (bits & sign == 0) bits | sign else ~bits;
            centers.keys[center] = @as(u64, rank) << 32 | center;
        }
        var place = centers.len / 2;
        while (place > 0) {
            place -= 1;
            centers.sink(place);
        }
        return centers;
    }

    pub fn next(centers: *Centers) ?u32 {
        if (centers.len == 0) return null;
        const center: u32 = @truncate(centers.keys[0]);
        centers.len -= 1;
        centers.keys[0] = centers.keys[centers.len];
        centers.sink(0);
        return center;
    }

    fn sink(centers: *Centers, from: u32) void {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const keys = &centers.keys;
        const key = keys[from];
        var place = from;
        while (2 * place + 1 < centers.len) {
            var child = 2 * place + 1;
            if (child + 1 < centers.len) child += @intFromBool(keys[child + 1] < keys[child]);
            if (key <= keys[child]) break;
            keys[place] = keys[child];
            place = child;
        }
        keys[place] = key;
    }
};

// ---- record cache ----
//
// For links on disk. It gets the remainder of a memory budget after codes and page directory.

/// Below this many slots a cache holds nothing long enough to be met again.
const slots_min = 64;

/// The request when the index was opened.
pub const Budget = struct {
    /// For codes, links, page directory and the cache together.
    memory_bytes: u64,
    /// Of it, for a cache: of records with links on disk, else of pages. 0: none; below zero: what codes and links leave over.
    share: f64 = 0,
    /// For whole pages beside codes and links where `memory_bytes` is 0, which limits nothing.
    pages_bytes: u64 = 0,

    /// Bytes that links must leave over.
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
    const slot_bytes = std.mem.alignForward(u32, record_slot_bytes(reader.pages_header.lower_bytes, @intCast(@min(list_bytes, record_bytes_max))), 8);
    var cache = try cache_room.Cache.init(allocator, .{
        .vertex_count = reader.n(),
        .budget_bytes = @intCast(budget.memory_bytes - used),
        .slot_bytes = slot_bytes,
    });
    if (cache.slot_count() >= slots_min) return cache;
    cache.deinit();
    return null;
}

// ---- page caches ----
//
// Whole pages in memory, where codes and links leave room for them: pages of pages.bin, and once all of those fit pages
// of vectors.bin.

/// A cache of fewer pages than one in so many changes nothing that a query would notice.
const share_least = index.sizes.cached_share_least;

pub const PageCaches = struct {
    /// By file.
    of: [io.file_count]?PageCache = @splat(null),

    pub const Options = [io.file_count]?cache_room.PageCacheOptions;

    /// Empty where the plan has none, or the budget leaves too few pages.
    pub fn open(allocator: std.mem.Allocator, shared: *const Shared, budget: Budget) error{OutOfMemory}!PageCaches {
        var self: PageCaches = .{};
        errdefer self.deinit();
        const reader = shared.reader;
        if (shared.plan == .links_on_disk or budget.share == 0) return self;
        const used = reader.memory_codes_bytes() + reader.memory_links_bytes() + reader.memory_pages_bytes() + shared.blocks_bytes();
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

// ---- records ----
//
// A record as the cache keeps it: the factors of the full code, the lower code, the adjacency list, and room to look
// past the end of both.

/// Longer records are not cached; at 128 dimensions a record has 150 bytes.
pub const record_bytes_max = 8192;
const factor_bytes = 6;
pub const padding_bytes = layout.adjacency.over_read_bytes;

pub const Record = struct { factors: quant.RecordFactors, lower: [*]const u8, list: []const u8 };

/// Null when the record is too long.
pub fn write_record(out: *[record_bytes_max]u8, lower: []const u8, factors: quant.RecordFactors, list: []const u8) ?[]u8 {
    const size = factor_bytes + lower.len + list.len + padding_bytes;
    if (size > out.len) return null;
    std.mem.writeInt(u32, out[0..4], @bitCast(factors.offset), .little);
    std.mem.writeInt(u16, out[4..factor_bytes], factors.ratio, .little);
    @memcpy(out[factor_bytes..][0..lower.len], lower);
    @memcpy(out[factor_bytes + lower.len ..][0..list.len], list);
    @memset(out[factor_bytes + lower.len + list.len ..][0..padding_bytes], 0);
    return out[0..size];
}

/// `bytes` as `write_record` gave them.
pub fn read_record(bytes: []const u8, lower_bytes: usize) Record {
    return .{
        .factors = .{ .offset = @bitCast(std.mem.readInt(u32, bytes[0..4], .little)), .ratio = std.mem.readInt(u16, bytes[4..factor_bytes], .little) },
        .lower = bytes.ptr + factor_bytes,
        .list = bytes[factor_bytes + lower_bytes .. bytes.len - padding_bytes],
    };
}

/// Slots of the cache: long enough for nearly all records of an index.
fn record_slot_bytes(lower_bytes: u32, adjacency_bytes: u32) u32 {
    return @min(record_bytes_max, factor_bytes + lower_bytes + adjacency_bytes + padding_bytes);
}

test "centers come by their distance, negative ones too, and of equal ones the first" {
    var prng = base.Prng.init(5);
    for ([_]usize{ 1, 2, 7, base.limits.centers_max }) |count| {
        var norms2: [base.limits.centers_max]f32 = undefined;
        var terms: [base.limits.centers_max]f32 = undefined;
        for (norms2[0..count], terms[0..count]) |*norm2, *term| {
            norm2.* = @floatFromInt(prng.below(20));
            term.* = -@as(f32, @floatFromInt(prng.below(20)));
        }
        var centers: Centers = .init(norms2[0..count], &terms);
        var last = centers.next().?;
        for (1..count) |_| {
            const center = centers.next().?;
            const before = norms2[last] + terms[last];
            const distance = norms2[center] + terms[center];
            try std.testing.expect(before < distance or (before == distance and last < center));
            last = center;
        }
        try std.testing.expectEqual(null, centers.next());
    }
}

test "a record reads back" {
    var out: [record_bytes_max]u8 = undefined;
    const bytes = write_record(&out, "abcd", .{ .offset = -2.5, .ratio = 770 }, "xyz").?;
    const back = read_record(bytes, 4);
    try std.testing.expectEqual(770, back.factors.ratio);
    try std.testing.expectEqual(-2.5, back.factors.offset);
    try std.testing.expectEqualStrings("abcd", back.lower[0..4]);
    try std.testing.expectEqualStrings("xyz", back.list);
    const long: [record_bytes_max]u8 = @splat(1);
    try std.testing.expectEqual(null, write_record(&out, &long, .{ .offset = 0, .ratio = 0 }, ""));
}
