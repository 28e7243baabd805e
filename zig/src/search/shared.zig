//! What all queries of an open index share and none changes.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const graph = @import("graph");
const cache_room = @import("cache");
const index = @import("index");
const PageCaches = @import("page_caches.zig").PageCaches;

/// Entry points that a search looks at, at least, where there are so many: those of the nearest centers, whose distances a
/// query is prepared with anyway. On 14 sets it finds what a look at all of them finds. velo.h names it, too.
pub const entries_looked = 256;

/// pages: a few codes of each page are all that is in memory (ranked.zig).
pub const Plan = enum { links_in_memory, links_on_disk, pages };

pub const Shared = struct {
    reader: *const index.Reader,
    plan: Plan,
    /// Records of links on disk; null when the memory plan leaves nothing for it.
    cache: ?*cache_room.Cache = null,
    /// Whole pages, where codes and links leave memory for them.
    page_caches: ?*PageCaches = null,
    /// Vertices drawn evenly over the index, those of one center side by side: a search starts at the best of them around
    /// the centers nearest to the query.
    entries: []u32,
    /// Where the entries of each center begin, and the last ones end.
    entry_starts: []u32,
    /// |c|² where distances are asked for; 0 for products.
    center_norms2: []f32,
    /// Their codes side by side, so that looking at all of them runs at the speed of the nearer caches.
    entry_memory: base.AlignedBytes,
    entry_codes: quant.Codes,
    entry_places: []u32, // 0, 1, 2, …

    pub fn init(allocator: std.mem.Allocator, reader: *const index.Reader, plan: Plan) error{OutOfMemory}!Shared {
        const n = reader.n();
        // Pages are ranked, and nothing is entered.
        const entries = if (plan == .pages) try allocator.alloc(u32, 0) else try graph.entry_points(allocator, n, graph.entry_count(n), reader.header.rotation_seed);
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

    pub fn deinit(self: *Shared, allocator: std.mem.Allocator) void {
        allocator.free(self.entry_codes.factors);
        allocator.free(self.entry_codes.center_ids);
        allocator.free(self.entries);
        allocator.free(self.entry_starts);
        allocator.free(self.center_norms2);
        allocator.free(self.entry_places);
        self.entry_memory.free();
    }
};
