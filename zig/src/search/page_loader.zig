//! Fills page caches in the background after an index was opened: sequential reads of a mebibyte bring all pages in a
//! fraction of the time that queries would take to ask for each of them. Until a page has come, queries read it themselves.
//!
//! If some pages have no room, the pages of the vertices to which most links lead come first. A vertex that is near many
//! others has many links to it and is an answer of many queries, so this needs no queries and nothing on disk; counts of
//! real queries take over from there (cache/page_cache.zig). Some pages of stored vectors are left to queries.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const io = @import("io");
const cache_room = @import("cache");
const index = @import("index");
const File = @import("shared.zig").File;
const PageCaches = @import("shared.zig").PageCaches;
const assert = std.debug.assert;

/// Bytes of one read.
const read_bytes = 1 << 20;
/// Pages that are not wanted between two that are: to read so many costs less than a second read.
const gap_max = 8;

pub const PageLoader = struct {
    reader: *const index.Reader,
    caches: *PageCaches,
    /// Open until `stop` has returned.
    files: [io.file_count]std.posix.fd_t,
    stopping: std.atomic.Value(bool) = .init(false),
    thread: ?std.Thread = null,

    /// `self` stays where it is until `stop`. A system that has no thread left is no error: queries fill the cache.
    pub fn start(self: *PageLoader) void {
        assert(self.thread == null);
        if (self.caches.of[0] == null) return;
        self.thread = std.Thread.spawn(.{ .stack_size = 256 * 1024 }, run, .{self}) catch null;
    }

    /// Returns when it reads nothing any more.
    pub fn stop(self: *PageLoader) void {
        self.stopping.store(true, .monotonic);
        if (self.thread) |thread| thread.join();
        self.thread = null;
    }

    fn run(self: *PageLoader) void {
        // Without memory for it queries fill the cache.
        self.load() catch {};
    }

    fn is_stopping(self: *const PageLoader) bool {
        return self.stopping.load(.monotonic);
    }

    fn load(self: *PageLoader) error{OutOfMemory}!void {
        for (&self.caches.of, std.enums.values(File)) |*of, file| {
            const cache = if (of.*) |*own| own else continue;
            var chosen = try base.BitSet.init(base.allocator, cache.page_count);
            defer chosen.deinit(base.allocator);
            if (cache.holds_all) chosen.fill() else if (file == .pages) try self.choose(cache, &chosen);
            try self.read(cache, file, &chosen);
        }
    }

    /// As many pages as have room, those that most links lead to.
    fn choose(self: *PageLoader, cache: *cache_room.PageCache, chosen: *base.BitSet) error{OutOfMemory}!void {
        const page_count = cache.page_count;
        const Page = struct { links: u32, number: u32 };
        const expected = try base.allocator.alloc(u32, page_count);
        defer base.allocator.free(expected);
        self.count_links(expected);
        cache.expect(expected);
        const ranked = try base.allocator.alloc(Page, page_count);
        defer base.allocator.free(ranked);
        for (ranked, expected, 0..) |*page, links, number| page.* = .{ .links = links, .number = @intCast(number) };
        std.mem.sortUnstable(Page, ranked, {}, struct {
            fn less(_: void, a: Page, b: Page) bool {
                return if (a.links == b.links) a.number < b.number else a.links > b.links;
            }
        }.less);
        for (ranked[0..cache.cache.slot_count()]) |page| chosen.insert(page.number);
    }

    /// Links that lead to the records of each page. A damaged list is skipped; a query that decodes it reports it.
    fn count_links(self: *const PageLoader, counts: []u32) void {
        @memset(counts, 0);
        const links = if (self.reader.links) |*there| there else return;
        const directory = &self.reader.directory;
        var neighbors: [layout.adjacency.neighbors_max]u32 = undefined;
        for (0..self.reader.n()) |vertex| {
            if (vertex % 1024 == 0 and self.is_stopping()) return;
            const ids = links.decode(@intCast(vertex), &neighbors) catch continue;
            for (ids) |id| counts[directory.page_of(id)] += 1;
        }
    }

    fn read(self: *PageLoader, cache: *cache_room.PageCache, file: File, chosen: *const base.BitSet) error{OutOfMemory}!void {
        const page_size = cache.cache.slot_bytes;
        const together = @max(1, read_bytes / page_size);
        var buffer = try base.AlignedBytes.alloc(together * page_size + layout.adjacency.over_read_bytes, .{});
        defer buffer.free();
        var begin = chosen.next(0, true);
        while (begin < chosen.len and !self.is_stopping()) {
            var end = begin + 1;
            var next = chosen.next(end, true);
            while (next < chosen.len and next - end <= gap_max and next - begin < together) {
                end = next + 1;
                next = chosen.next(end, true);
            }
            const count = self.read_pages(file, page_size, begin, end, buffer.bytes);
            for (begin..begin + count) |page| {
                const bytes = buffer.bytes[(page - begin) * page_size ..][0..page_size];
                // A damaged page stays out, so that the query that needs it reads it and reports it.
                if (chosen.contains(page) and self.is_whole(file, @intCast(page), bytes)) _ = cache.try_insert(@intCast(page), bytes);
            }
            begin = next;
        }
    }

    /// Returns the number of pages that came whole.
    fn read_pages(self: *const PageLoader, file: File, page_size: usize, begin: usize, end: usize, buffer: []align(base.memory.page_size) u8) usize {
        const offset = switch (file) {
            .pages => self.reader.pages_header.offset_of(@intCast(begin)),
            .vectors => self.reader.vectors.?.geometry.offset_of(@intCast(begin)),
        };
        const length = (end - begin) * page_size;
        var at: usize = 0;
        while (at < length) {
            // Direct reads begin at whole pages.
            at -= at % page_size;
            const count = std.posix.pread(self.files[@intFromEnum(file)], buffer[at..length], offset + at) catch break;
            if (count < page_size) break;
            at += count;
        }
        return at / page_size;
    }

    fn is_whole(self: *const PageLoader, file: File, page: u32, bytes: []const u8) bool {
        switch (file) {
            .pages => _ = layout.page.View.parse(bytes, self.reader.page_geometry(), self.reader.expected_page(page)) catch return false,
            .vectors => self.reader.vectors.?.geometry.check(bytes, page) catch return false,
        }
        return true;
    }
};
