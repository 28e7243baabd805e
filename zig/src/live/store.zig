//! The contract of a file system for live data, and the real one. `Live` takes the store as a type, so that a simulated one
//! (zig/src/sim/store.zig) can lose, tear and refuse whatever a crash or a full disk may.
//!
//! The contract: names are paths inside one folder. Bytes written to a file survive a crash only after `sync` of that file
//! returned; creation, removal and replacement of a name only after `sync_folder` of its folder did. Before that any
//! part may survive. After a failed `sync` the state on the device is unknown.
const std = @import("std");
const base = @import("base");
const page_file = @import("page.zig");
const Page = page_file.Page;
const linux = std.os.linux;

/// Time between two looks whether the page still has its name.
const look_us = 100 * std.time.us_per_ms;
/// A process that waits for the lock tries again at least so often: who held it may have been killed.
const slice_ns = 10 * std.time.ns_per_ms;
/// Time that a process lets others take the lock which it had last.
const courtesy_ns = 50 * std.time.ns_per_us;

/// Whether a file still has a name, and its size.
pub const Stat = struct { size: u64, is_linked: bool };

/// A folder by its descriptor, which its last user closes.
pub const SharedFolder = struct {
    dir: std.fs.Dir,
    users: std.atomic.Value(u32) = .init(1),

    pub fn create(dir: std.fs.Dir) error{OutOfMemory}!*SharedFolder {
        const self = try base.allocator.create(SharedFolder);
        self.* = .{ .dir = dir };
        return self;
    }

    pub fn release(self: *SharedFolder) void {
        if (self.users.fetchSub(1, .acq_rel) > 1) return;
        self.dir.close();
        base.allocator.destroy(self);
    }
};

pub const FolderStore = struct {
    dir: std.fs.Dir,
    /// Closes `dir`; null: this store does.
    shared: ?*SharedFolder = null,
    process: u32,
    /// The folder once more, for its lock.
    locked: ?std.fs.File = null,
    /// The last is the page in use; of the others callers may have pointers.
    pages: std.ArrayList(Mapped) = .empty,
    looked_us: u64 = 0,

    pub const File = std.fs.File;
    pub const Map = []align(std.heap.page_size_min) const u8;
    pub const Hold = std.fs.File;
    const Mapped = struct { page: *Page, file: File };

    pub fn open(path: []const u8) !FolderStore {
        return .{ .dir = try std.fs.cwd().openDir(path, .{ .iterate = true }), .process = process_id() };
    }

    pub fn of(shared: *SharedFolder) FolderStore {
        _ = shared.users.fetchAdd(1, .acq_rel);
        return .{ .dir = shared.dir, .shared = shared, .process = process_id() };
    }

    fn process_id() u32 {
        return @intCast(linux.getpid());
    }

    pub fn deinit(self: *FolderStore) void {
        // A forked child may hold the descriptors, and with them the locks, for long.
        if (self.locked) |file| {
            _ = flock(file, std.posix.LOCK.UN) catch {};
            file.close();
        }
        for (self.pages.items) |one| {
            std.posix.munmap(@as([*]align(std.heap.page_size_min) const u8, @ptrCast(@alignCast(one.page)))[0..page_file.file_bytes]);
            _ = flock(one.file, std.posix.LOCK.UN) catch {};
            one.file.close();
        }
        self.pages.deinit(base.allocator);
        if (self.shared) |shared| shared.release() else self.dir.close();
    }

    // ---- what processes share: the lock of the folder, and its page ----

    fn page(self: *const FolderStore) ?*Page {
        return if (self.pages.getLastOrNull()) |mapped| mapped.page else null;
    }

    /// False where it is taken. File systems may refuse, with errors that std holds for impossible.
    fn flock(file: File, operation: i32) !bool {
        while (true) switch (linux.E.init(linux.flock(file.handle, operation))) {
            .SUCCESS => return true,
            .AGAIN => return false,
            .INTR => continue,
            .NOLCK => return error.SystemResources,
            .BADF, .INVAL, .OPNOTSUPP, .NOSYS => return error.FileLocksNotSupported,
            else => |errno| return std.posix.unexpectedErrno(errno),
        };
    }

    /// The lock of the folder; false where another process, or another handle of this one, keeps it for so long. It ends with its
    /// process. Once there is a page, that says which process has it.
    pub fn lock(self: *FolderStore, timeout_ns: u64) !bool {
        if (self.locked == null)
            self.locked = .{ .handle = try std.posix.openat(self.dir.fd, ".", .{ .ACCMODE = .RDONLY, .DIRECTORY = true, .CLOEXEC = true }, 0) };
        const shared = self.page();
        if (shared) |one| {
            if (one.waiters.load(.monotonic) > 0 and one.holder.load(.monotonic) == self.process) {
                std.Thread.sleep(courtesy_ns);
                // Those who wait count themselves again soon, and those who were killed do not.
                if (one.holder.load(.monotonic) == self.process) one.waiters.store(0, .monotonic);
            }
        }
        if (!try flock(self.locked.?, std.posix.LOCK.EX | std.posix.LOCK.NB)) if (!try self.wait_for_lock(timeout_ns)) return false;
        if (shared) |one| one.holder.store(self.process, .monotonic);
        return true;
    }

    fn wait_for_lock(self: *FolderStore, timeout_ns: u64) !bool {
        var timer = try std.time.Timer.start();
        const shared = self.page();
        while (true) {
            if (shared) |one| _ = one.waiters.fetchAdd(1, .acq_rel);
            defer if (shared) |one| one.stop_waiting();
            const unlocks = if (shared) |one| one.unlocks.load(.acquire) else 0;
            if (try flock(self.locked.?, std.posix.LOCK.EX | std.posix.LOCK.NB)) return true;
            const passed = timer.read();
            if (passed >= timeout_ns) return false;
            const slice = @min(slice_ns, timeout_ns - passed);
            if (shared) |one| {
                const time: linux.timespec = .{ .sec = 0, .nsec = @intCast(slice) };
                _ = linux.futex_4arg(&one.unlocks, .{ .cmd = .WAIT, .private = false }, unlocks, &time);
            } else std.Thread.sleep(slice);
        }
    }

    pub fn unlock(self: *FolderStore) void {
        _ = flock(self.locked.?, std.posix.LOCK.UN) catch {};
        const shared = self.page() orelse return;
        if (shared.waiters.load(.acquire) == 0) return;
        _ = shared.unlocks.fetchAdd(1, .acq_rel);
        _ = linux.futex_3arg(&shared.unlocks, .{ .cmd = .WAKE, .private = false }, 1);
    }

    /// The folder's page as it is now; null, to read only: there is none that can be mapped. To write, with the lock held, it is
    /// made; its content is then for the caller to judge. Pages that were opened before stay mapped.
    pub fn open_page(self: *FolderStore, mode: enum { read, write }) !?*Page {
        try self.pages.ensureUnusedCapacity(base.allocator, 1);
        const file = self.open_page_file(mode == .write) catch |err| return if (mode == .write) err else null;
        errdefer file.close();
        const protection: u32 = if (mode == .write) std.posix.PROT.READ | std.posix.PROT.WRITE else std.posix.PROT.READ;
        const mapped = std.posix.mmap(null, page_file.file_bytes, protection, .{ .TYPE = .SHARED }, file.handle, 0) catch |err| {
            if (mode == .write) return err;
            file.close();
            return null;
        };
        self.pages.appendAssumeCapacity(.{ .page = @ptrCast(mapped.ptr), .file = file });
        return self.page();
    }

    fn open_page_file(self: *FolderStore, is_made: bool) !File {
        const flags: std.posix.O = .{ .ACCMODE = if (is_made) .RDWR else .RDONLY, .CREAT = is_made, .NONBLOCK = true, .NOFOLLOW = true, .CLOEXEC = true };
        const file = File{ .handle = try std.posix.openat(self.dir.fd, page_file.file_name, flags, 0o644) };
        errdefer file.close();
        const found = try file.stat();
        if (found.kind != .file) return error.NotAFile;
        if (found.size >= page_file.file_bytes) return file;
        if (!is_made) return error.EndOfStream;
        // Written, not only made longer: a hole would get its block when it is touched, and a full disk would then end the process.
        try file.pwriteAll(&@as([page_file.file_bytes]u8, @splat(0)), 0);
        return file;
    }

    /// Whether the page in use still has its name; looks now and then.
    pub fn page_is_linked(self: *FolderStore) !bool {
        const now = base.nowMicros();
        if (now -| self.looked_us < look_us) return true;
        if (!(try self.stat(self.pages.getLast().file)).is_linked) return false;
        self.looked_us = now;
        return true;
    }

    /// Says to all others, until this is closed, that a writer lives. With the lock held; true: it is the only one.
    pub fn take_lease(self: *FolderStore) !bool {
        const file = self.pages.getLast().file;
        const is_alone = try flock(file, std.posix.LOCK.EX | std.posix.LOCK.NB);
        if (!try flock(file, std.posix.LOCK.SH | std.posix.LOCK.NB)) return error.WouldBlock;
        return is_alone;
    }

    /// Names the run of the system; zeros where it has no name.
    pub fn boot(_: *FolderStore) [16]u8 {
        var text: [36]u8 = undefined;
        var hex: [32]u8 = undefined;
        var id: [16]u8 = @splat(0);
        const found = std.fs.cwd().readFile("/proc/sys/kernel/random/boot_id", &text) catch return id;
        if (std.mem.replacementSize(u8, found, "-", "") != hex.len) return id;
        _ = std.mem.replace(u8, found, "-", "", &hex);
        _ = std.fmt.hexToBytes(&id, &hex) catch {};
        return id;
    }

    pub fn stat(_: *FolderStore, file: File) !Stat {
        const found = try std.posix.fstat(file.handle);
        return .{ .size = @intCast(found.size), .is_linked = found.nlink > 0 };
    }

    /// A new, empty file, in the place of one of that name.
    pub fn create(self: *FolderStore, name: []const u8) !File {
        return self.dir.createFile(name, .{ .truncate = true, .read = true });
    }

    pub fn open_file(self: *FolderStore, name: []const u8, mode: std.fs.File.OpenMode) !File {
        return self.open_regular(name, if (mode == .read_only) .RDONLY else .RDWR);
    }

    /// Only files are opened: to open a pipe may take for ever.
    fn open_regular(self: *FolderStore, name: []const u8, mode: std.posix.ACCMODE) !File {
        const file = File{ .handle = try std.posix.openat(self.dir.fd, name, .{ .ACCMODE = mode, .NONBLOCK = true, .CLOEXEC = true }, 0) };
        errdefer file.close();
        if ((try file.stat()).kind != .file) return error.NotAFile;
        return file;
    }

    pub fn close(_: *FolderStore, file: File) void {
        file.close();
    }

    pub fn size(_: *FolderStore, file: File) !u64 {
        return file.getEndPos();
    }

    /// Fills the buffer as far as the file goes.
    pub fn read(_: *FolderStore, file: File, buffer: []u8, offset: u64) !usize {
        return file.preadAll(buffer, offset);
    }

    pub fn write(_: *FolderStore, file: File, bytes: []const u8, offset: u64) !void {
        return file.pwriteAll(bytes, offset);
    }

    pub fn sync(_: *FolderStore, file: File) !void {
        return std.posix.fdatasync(file.handle);
    }

    pub fn truncate(_: *FolderStore, file: File, length: u64) !void {
        return file.setEndPos(length);
    }

    pub fn rename(self: *FolderStore, from: []const u8, to: []const u8) !void {
        return self.dir.rename(from, to);
    }

    /// A second name for the same file.
    pub fn link(self: *FolderStore, from: []const u8, to: []const u8) !void {
        return std.posix.linkat(self.dir.fd, from, self.dir.fd, to, 0);
    }

    pub fn remove(self: *FolderStore, name: []const u8) !void {
        return self.dir.deleteFile(name);
    }

    pub fn make_folder(self: *FolderStore, name: []const u8) !void {
        return self.dir.makeDir(name);
    }

    /// A folder of the index with all it holds.
    pub fn remove_folder(self: *FolderStore, name: []const u8) !void {
        return self.dir.deleteTree(name);
    }

    /// The same, unless a reader has locked it.
    pub fn remove_unheld(self: *FolderStore, name: []const u8) !void {
        const file = File{ .handle = try std.posix.openat(self.dir.fd, name, .{ .ACCMODE = .RDONLY, .DIRECTORY = true, .CLOEXEC = true }, 0) };
        defer file.close();
        if (!try file.tryLock(.exclusive)) return;
        // A reader that opens it now finds no manifest, or is too late altogether.
        return self.dir.deleteTree(name);
    }

    /// A folder of the index that `remove_unheld` leaves in place until `release`; `WouldBlock`: it is being removed.
    pub fn hold(self: *FolderStore, name: []const u8) !Hold {
        const file = File{ .handle = try std.posix.openat(self.dir.fd, name, .{ .ACCMODE = .RDONLY, .DIRECTORY = true, .CLOEXEC = true }, 0) };
        errdefer file.close();
        if (!try file.tryLock(.shared)) return error.WouldBlock;
        return file;
    }

    pub fn release(_: *FolderStore, held: Hold) void {
        held.close();
    }

    /// "." or a folder in it.
    pub fn sync_folder(self: *FolderStore, name: []const u8) !void {
        const fd = try std.posix.openat(self.dir.fd, name, .{ .ACCMODE = .RDONLY, .DIRECTORY = true, .CLOEXEC = true }, 0);
        defer std.posix.close(fd);
        return std.posix.fsync(fd);
    }

    pub fn exists(self: *FolderStore, name: []const u8) !bool {
        self.dir.access(name, .{}) catch |err| switch (err) {
            error.FileNotFound => return false,
            else => return err,
        };
        return true;
    }

    /// Names in the folder itself, folders among them; all memory is `arena`'s.
    pub fn list(self: *FolderStore, arena: std.mem.Allocator) ![]const []const u8 {
        var names: std.ArrayList([]const u8) = .empty;
        // A descriptor of its own: the position of the shared one belongs to all users of the folder.
        var dir = try self.dir.openDir(".", .{ .iterate = true });
        defer dir.close();
        var iterator = dir.iterate();
        while (try iterator.next()) |entry| try names.append(arena, try arena.dupe(u8, entry.name));
        return names.items;
    }

    /// The whole file, mapped: what is never read takes no memory.
    pub fn map(self: *FolderStore, name: []const u8) !Map {
        const file = try self.open_regular(name, .RDONLY);
        defer file.close();
        const length: usize = @intCast(try file.getEndPos());
        if (length == 0) return error.EndOfStream;
        return std.posix.mmap(null, length, std.posix.PROT.READ, .{ .TYPE = .SHARED }, file.handle, 0);
    }

    pub fn unmap(_: *FolderStore, bytes: Map) void {
        std.posix.munmap(bytes);
    }
};

test "a shared folder stays open for its last user, wherever it is moved" {
    var tmp = std.testing.tmpDir(.{ .iterate = true });
    defer tmp.cleanup();
    try tmp.dir.makeDir("first");
    const shared = try SharedFolder.create(try tmp.dir.openDir("first", .{ .iterate = true }));
    var stores = [_]FolderStore{ .of(shared), .of(shared) };
    shared.release();
    stores[0].deinit();
    try tmp.dir.rename("first", "moved");
    try tmp.dir.makeDir("first");
    const file = try stores[1].create("a");
    stores[1].close(file);
    try tmp.dir.access("moved/a", .{});
    var arena = std.heap.ArenaAllocator.init(std.testing.allocator);
    defer arena.deinit();
    for (0..2) |_| try std.testing.expectEqual(1, (try stores[1].list(arena.allocator())).len);
    stores[1].deinit();
}

test "one handle has the lock at a time, with and without a page; all but the last closed have a lease" {
    var tmp = std.testing.tmpDir(.{ .iterate = true });
    defer tmp.cleanup();
    const path = try tmp.dir.realpathAlloc(std.testing.allocator, ".");
    defer std.testing.allocator.free(path);
    var first = try FolderStore.open(path);
    var second = try FolderStore.open(path);
    defer second.deinit();
    try std.testing.expectEqual(null, try second.open_page(.read));
    for (0..2) |_| {
        try std.testing.expect(try first.lock(0));
        try std.testing.expect(!try second.lock(std.time.ns_per_ms));
        first.unlock();
        try std.testing.expect(try second.lock(0));
        second.unlock();
        const pages = .{ (try first.open_page(.write)).?, (try second.open_page(.write)).? };
        pages[0].changes.store(7, .release);
        try std.testing.expectEqual(7, pages[1].changes.load(.acquire));
    }
    try std.testing.expect(try first.take_lease());
    try std.testing.expect(!try second.take_lease());
    first.deinit();
    try std.testing.expect(try second.take_lease());
    try std.testing.expect(try second.page_is_linked());
    try tmp.dir.deleteFile(page_file.file_name);
    try std.testing.expect(try second.page_is_linked()); // looked a moment ago
    second.looked_us = 0;
    try std.testing.expect(!try second.page_is_linked());
}

test "threads that wait for the lock get it once it is free" {
    var tmp = std.testing.tmpDir(.{ .iterate = true });
    defer tmp.cleanup();
    const path = try tmp.dir.realpathAlloc(std.testing.allocator, ".");
    defer std.testing.allocator.free(path);
    const Worker = struct {
        fn work(at: []const u8, counter: *u32) !void {
            var store = try FolderStore.open(at);
            defer store.deinit();
            const shared = (try store.open_page(.write)).?;
            for (0..200) |_| {
                if (!try store.lock(60 * std.time.ns_per_s)) return error.TimedOut;
                defer store.unlock();
                if (shared.holder.load(.monotonic) != store.process) return error.WrongHolder;
                @atomicStore(u32, counter, @atomicLoad(u32, counter, .unordered) + 1, .unordered); // lost where two are inside
            }
        }
    };
    var counter: u32 = 0;
    var threads: [4]std.Thread = undefined;
    for (&threads) |*thread| thread.* = try std.Thread.spawn(.{}, Worker.work, .{ path, &counter });
    for (threads) |thread| thread.join();
    try std.testing.expectEqual(800, counter);
}
